"""Penalties: what a passive party adds to what its bottom model learns, so that activations tell less of its columns.

None of them proves anything. One idea per file.
"""

from splitvfl.penalties.adversarial_reconstruction import AdversarialReconstruction
from splitvfl.penalties.distance_correlation import DistanceCorrelation, distance_correlation
from splitvfl.penalties.mutual_information_bottleneck import MutualInformationBottleneck

__all__ = ["AdversarialReconstruction", "DistanceCorrelation", "MutualInformationBottleneck", "distance_correlation"]

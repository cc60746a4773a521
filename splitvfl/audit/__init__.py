"""What defenses claim, checked: by calculation, and by telling neighbouring inputs apart from what is sent.

>>> from splitvfl.defenses import LaplaceResidue
>>> found = audit_defense(LaplaceResidue(epsilon=1.0), draws=4000)
>>> [claim.verdict for claim in found.claims]
['proven', 'proven']
"""

from splitvfl.audit.calculation import Calculated, audit_gaussian, calculated
from splitvfl.audit.defense import audit_defense, claims_to_measure
from splitvfl.audit.release import audit_release
from splitvfl.audit.verdicts import VERDICTS, ClaimAudit, DefenseAudit, Verdict
from splitvfl.audit.worlds import Surroundings

__all__ = [
    "VERDICTS",
    "Calculated",
    "ClaimAudit",
    "DefenseAudit",
    "Surroundings",
    "Verdict",
    "audit_defense",
    "audit_gaussian",
    "audit_release",
    "calculated",
    "claims_to_measure",
]

"""Reproduction of *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*."""

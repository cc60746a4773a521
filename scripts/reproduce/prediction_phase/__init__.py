"""The figures of *Privacy Against Inference Attacks in Vertical Federated Learning* (Rassouli, Varasteh, Gündüz)."""

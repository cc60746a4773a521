"""Cryptography between parties."""

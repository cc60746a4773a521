"""Cryptography between parties."""

from splitvfl.crypto.packing import pack, slot_capacity, unpack

__all__ = ["pack", "slot_capacity", "unpack"]

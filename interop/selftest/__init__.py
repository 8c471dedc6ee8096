"""Tests of the suite itself, without a broker."""

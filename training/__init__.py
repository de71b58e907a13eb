"""Trains the small model that ships with Statemark. Development only: needs torch; the package never imports it."""

"""Readers that several importers share: intervals, speeds over time, tables of devices, pickles."""

"""What several importers read: intervals, series, tables of devices, pickles."""

"""Who is online, how fast, when it fails: the trace table and all questions to it."""

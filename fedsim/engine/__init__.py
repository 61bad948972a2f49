"""Virtual time: the event loop, pacing, dispatch, selection, costs."""

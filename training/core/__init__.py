"""Pure parts of training: agreed integer state, codecs, outer step, schedules."""

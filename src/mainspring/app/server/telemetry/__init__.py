"""What programs that run without a person say of themselves: lines of a log, traces of jobs."""

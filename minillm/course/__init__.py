"""The lab machinery. It imports no module that holds a task: what it grades is imported only after the overlay."""

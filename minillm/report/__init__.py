"""Tables and pictures of runs. They read records and give renderables; whoever calls decides where to print them."""

"""What every script needs and no equation mentions: command line, devices, processes."""

"""The roof: settings, wiring, worker fleet, client and command line."""

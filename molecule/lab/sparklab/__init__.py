"""The local pair: Sparks as systemd containers, with the real engine inside."""

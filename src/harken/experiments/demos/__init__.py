"""The demos: one module per `harken demo NAME`."""

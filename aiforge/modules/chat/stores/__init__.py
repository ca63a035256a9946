"""Where conversations live on. `protocol` says what a store must do; each other module is one store."""

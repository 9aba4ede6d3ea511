from bts_jax.cli import main

if __name__ == "__main__":
    main()

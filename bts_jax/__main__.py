from bts_jax_command import main

if __name__ == "__main__":
    main()

from fedgram.cli import main

main()

"""`solo5ctl convert`: writes declarations of the unikernels in a dump of albatross."""

from argparse import Namespace

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser

DIRECTORY = "/srv/unikernels"
"""Of images in declarations that are printed."""

EPILOG = """\
FILE is the dump of albatross-daemon 1.1 to 2.7: the file `state` in its directory, such as
/var/lib/albatross/state. Without --output, declarations are printed, and no image is written:

  solo5ctl convert --output /srv/unikernels /var/lib/albatross/state
  mv /srv/unikernels/*.unikernel /etc/solo5/ && systemctl daemon-reload

What is to be done before the first start is a comment of each declaration, and on standard error.
"""


def configure(parser: Parser) -> None:
    """Add the options."""
    parser.epilog = EPILOG
    parser.add_argument("file", metavar="FILE", help="dump of albatross-daemon")
    parser.add_argument(
        "--output", metavar="DIR", help="write NAME.unikernel and the images to this directory; it is created"
    )
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    """Run `solo5ctl convert` and return the exit status."""
    try:
        from solo5_systemd.declared.albatross_dump import read_dump  # imported here: no other verb needs the library
    except ImportError as error:
        from solo5_systemd.dependencies import dependency_error

        raise dependency_error(error) from error
    import os

    from solo5_systemd.cli.albatross_files import convert, document, messages, read_content, write

    directory = os.path.realpath(arguments.output) if arguments.output is not None else DIRECTORY
    dump = read_dump(read_content(arguments.file))
    results = convert(dump, directory)
    if arguments.output is not None:
        write(results, directory)
    if arguments.json:
        written = directory if arguments.output is not None else None
        context.screen.json([document(each, written) for each in results])
    elif arguments.output is not None:
        context.screen.write("".join(f"{directory}/{each.file}\n" for each in results))
    else:
        context.screen.write("\n".join(f"# {each.file}\n{each.converted.text}" for each in results))
    for sentence in messages(dump, results):
        context.screen.message(sentence)
    return 0

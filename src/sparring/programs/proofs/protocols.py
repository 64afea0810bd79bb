"""The six protocols as tables: nip, adp, debate, mnip, merlin_arthur and solo_verifier."""

from collections.abc import Callable

from sparring.config.proofs import ProtocolSettings
from sparring.core import InputError
from sparring.core.errors import shown
from sparring.core.own_code import is_class_path, own_code, own_function
from sparring.programs.proofs.protocol import Agent, Channel, Protocol, Stance, Turn

MakeProtocol = Callable[[ProtocolSettings], Protocol]
_VERIFIER = Agent("verifier", "verifier")


def nip(given: ProtocolSettings) -> Protocol:
    """One prover and the verifier take turns; both see everything."""
    rounds = given.max_message_rounds, given.min_message_rounds
    return _one_prover("nip", given, *rounds, verifier_first=given.verifier_first)


def adp(given: ProtocolSettings) -> Protocol:
    """The prover says one thing, and the verifier decides (abstract decision problem)."""
    return _one_prover("adp", given, max_rounds=2)


def debate(given: ProtocolSettings) -> Protocol:
    """Two provers argue for opposite verdicts. All see both channels; a prover writes to its own."""
    everybody = ("prover0", "prover1", "verifier")
    return _two_provers("debate", given, (everybody, everybody), ("reject", "accept"))


def mnip(given: ProtocolSettings) -> Protocol:
    """Two provers argue for the same verdict, and neither sees the other's channel."""
    return _two_provers(
        "mnip", given, (("prover0", "verifier"), ("prover1", "verifier")), ("accept", "accept")
    )


def merlin_arthur(given: ProtocolSettings) -> Protocol:
    """A coin, the episode's seed, decides which of two opposed, anonymous provers says one thing, and the
    verifier decides."""
    everybody = ("prover0", "prover1", "verifier")
    return Protocol(
        "merlin_arthur",
        agents=(Agent("prover0", "prover", "reject"), Agent("prover1", "prover", "accept"), _VERIFIER),
        channels=(Channel("main", everybody),),
        cycle=(_speaks("prover0", "main") + _speaks("prover1", "main"), _speaks("verifier", "main")),
        max_rounds=2,
        coin=("prover0", "prover1"),
        anonymous=True,
        settings=given,
    )


def solo_verifier(given: ProtocolSettings) -> Protocol:
    """The verifier decides alone, in the only round: what the other protocols are compared with."""
    return Protocol(
        "solo_verifier",
        agents=(_VERIFIER,),
        channels=(Channel("main", ("verifier",)),),
        cycle=(_speaks("verifier", "main"),),
        max_rounds=1,
        settings=given,
    )


PROTOCOLS: dict[str, MakeProtocol] = {
    "nip": nip,
    "adp": adp,
    "debate": debate,
    "mnip": mnip,
    "merlin_arthur": merlin_arthur,
    "solo_verifier": solo_verifier,
}


def build_protocol(name: str, given: ProtocolSettings | None = None) -> Protocol:
    """Return the table of a protocol: one of the six, or a function of your own (``court.py:court``), which
    takes ProtocolSettings and returns a Protocol."""
    given = given or ProtocolSettings()
    if is_class_path(name):
        return _own_protocol(name, given)
    if name == "zero_knowledge":
        raise InputError(
            "protocol",
            "zero_knowledge is not possible with text: its simulator is rewarded by the logits of messages",
            f"Use one of {', '.join(PROTOCOLS)}",
        )
    if name not in PROTOCOLS:
        raise InputError(
            "protocol",
            f"there is no protocol {name}",
            f"Use one of {', '.join(PROTOCOLS)}, or my_file.py:my_protocol",
        )
    return PROTOCOLS[name](given)


def _own_protocol(path: str, given: ProtocolSettings) -> Protocol:
    make = own_function(path, "protocol")
    with own_code(f"{path} failed", "protocol"):
        made = make(given)
    if not isinstance(made, Protocol):
        raise InputError("protocol", f"{path} returns {shown(made)}", "Return a Protocol")
    return made


def _speaks(agent: str, *channels: str) -> tuple[Turn, ...]:
    return (Turn(agent, channels),)


def _one_prover(
    name: str, given: ProtocolSettings, max_rounds: int, min_rounds: int = 1, *, verifier_first: bool = False
) -> Protocol:
    prover, verifier = _speaks("prover", "main"), _speaks("verifier", "main")
    return Protocol(
        name,
        agents=(Agent("prover", "prover", "accept"), _VERIFIER),
        channels=(Channel("main", ("prover", "verifier")),),
        cycle=(verifier, prover) if verifier_first else (prover, verifier),
        max_rounds=max_rounds,
        min_rounds=min_rounds,
        random_stance=given.randomize_prover_stance,
        settings=given,
    )


def _two_provers(
    name: str,
    given: ProtocolSettings,
    seen_by: tuple[tuple[str, ...], tuple[str, ...]],
    stances: tuple[Stance, Stance],
) -> Protocol:
    """Return a protocol in which two provers have a channel each, and the verifier writes to both."""
    own = [_speaks(f"prover{n}", f"prover{n}_channel") for n in (0, 1)]
    in_turn = (own[0], own[1]) if given.prover0_first else (own[1], own[0])
    provers = in_turn if given.sequential else (own[0] + own[1],)
    verifier = (_speaks("verifier", "prover0_channel", "prover1_channel"),)
    return Protocol(
        name,
        agents=(*(Agent(f"prover{n}", "prover", stances[n]) for n in (0, 1)), _VERIFIER),
        channels=tuple(Channel(f"prover{n}_channel", seen_by[n]) for n in (0, 1)),
        cycle=verifier + provers if given.verifier_first else provers + verifier,
        max_rounds=given.max_message_rounds,
        min_rounds=given.min_message_rounds,
        random_stance=given.randomize_prover_stance and name == "mnip",
        shuffled_channels=given.randomize_channel_order,
        settings=given,
    )

"""Which ID tokens let people in, as what, and for how long; who is kept out."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi.testclient import TestClient

from mainspring.control import create_app
from mainspring.control.logins import AGAIN_S, ALGORITHMS, FRESH_S, KEYS_S, LEEWAY_S, Logins
from mainspring.control.service.people import LOGINS_MAX, People
from mainspring.control.store.secrets import SecretKeys
from mainspring.control.store.settings import Settings
from mainspring.domain.answers import Login, LoginOffer, NewToken, TokenMade
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import (
    Conflict,
    InvalidInput,
    InvalidSpec,
    NotAllowed,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB
from mainspring.domain.team import GroupRole, Oidc, Team, TeamRole
from mainspring.testing import SeededDice

if TYPE_CHECKING:
    from tests.control.conftest import World

ISSUER = "https://login.example.org"
ARMS, GRASP, VISION = TeamName("arms"), TeamName("grasp"), TeamName("vision")
OIDC = Oidc(
    issuer=ISSUER,
    client_id="mainspring",
    roles=(
        GroupRole(group="leads", team=ARMS, role=TeamRole.ADMIN),
        GroupRole(group="grasping", team=GRASP),
        GroupRole(group="seeing", team=VISION),
        GroupRole(group="nowhere", team=TeamName("nowhere")),
    ),
)


def letters(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def by_hand(head: Mapping[str, Any], claims: Mapping[str, Any], secret: str) -> str:
    """A token as no library would sign it."""
    said = f"{letters(json.dumps(head).encode())}.{letters(json.dumps(claims).encode())}"
    signature = hmac.new(secret.encode(), said.encode(), "sha256").digest() if secret else b""
    return f"{said}.{letters(signature)}"


class Issuer:
    """Signs what it is told to, and publishes its keys over a line that may break."""

    def __init__(self) -> None:
        self.keys = {"first": ec.generate_private_key(ec.SECP256R1())}
        self.asked: list[str] = []
        self.answering = True

    def fetch(self, url: str) -> Mapping[str, Any]:
        self.asked.append(url)
        if not self.answering:
            raise Unavailable("ask", got="nothing")
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}
        published = {name: jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()) for name, key in self.keys.items()}
        return {"keys": [json.loads(words) | {"kid": name, "use": "sig"} for name, words in published.items()]}

    def sign(self, claims: Mapping[str, Any], *, key: str = "first") -> str:
        return jwt.encode(dict(claims), self.keys[key], algorithm="ES256", headers={"kid": key})


class Door:
    """A lab that takes an issuer's word."""

    def __init__(self, world: World, oidc: Oidc = OIDC) -> None:
        self.world = world
        self.issuer = Issuer()
        self.people = world.control.people
        self.logins = Logins(self.people, oidc, self.issuer.fetch, world.clock)
        for name, parent in ((TeamName(LAB), None), (VISION, LAB), (ARMS, LAB), (GRASP, ARMS)):
            self.people.set_team(Team(name=name, parent=parent))

    def claims(self, **changed: Any) -> dict[str, Any]:
        now_s = self.world.clock.now_s()
        claims = {
            "iss": ISSUER,
            "aud": "mainspring",
            "sub": "4711",
            "iat": now_s,
            "exp": now_s + 300,
            "email": "Bo@example.org",
            "email_verified": True,
            "groups": ["grasping"],
        }
        return {name: value for name, value in (claims | changed).items() if value is not None}

    def enter(self, *, key: str = "first", team: str = "", **changed: Any) -> TokenMade:
        login = Login(id_token=self.issuer.sign(self.claims(**changed), key=key), team=team)
        return self.logins.log_in(login, address="192.0.2.7")


@pytest.fixture
def door(world: World) -> Door:
    return Door(world)


def test_an_id_token_lets_its_person_in_for_some_hours_as_what_their_group_is(door: Door) -> None:
    made = door.enter()
    caller = door.people.caller(made.secret)
    assert (caller.holder, caller.team, caller.role) == ("bo@example.org", GRASP, TeamRole.MEMBER)
    assert made.token.expires_s == pytest.approx(door.world.clock.now_s() + 8 * 3_600)
    (line,) = [line for line in door.people.audit() if line.action == "log in"]
    assert (line.holder, line.address, line.team, line.outcome) == ("bo@example.org", "192.0.2.7", GRASP, "done")
    door.enter(aud=["mainspring"], azp="mainspring")
    door.world.clock.advance(8 * 3_600)
    with pytest.raises(NotAllowed, match="ended"):
        door.people.caller(made.secret)
    assert door.people.whoami(door.people.caller(door.enter().secret)).holder == "bo@example.org"


def test_an_id_token_that_says_anything_else_lets_nobody_in(door: Door) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"aud": "another"}, "udience"),
        ({"aud": ["another", "one"]}, "udience"),
        ({"aud": ["mainspring", "another"]}, "another program"),
        ({"azp": "another"}, "another program"),
        ({"aud": None}, "aud"),
        ({"iss": f"{ISSUER}/"}, "ssuer"),
        ({"iss": None}, "iss"),
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "no time"),
        ({"exp": 1e300}, "no time"),
        ({"iat": None}, "iat"),
        ({"iat": True}, "no time"),
        ({"sub": None}, "sub"),
        ({"email": None}, "'email'"),
        ({"email": ["bo@example.org"]}, "'email'"),
        ({"email_verified": False}, "not verified"),
        ({"email_verified": None}, "not verified"),
        ({"groups": None}, "theirs: none"),
        ({"groups": {"grasping": True}}, "theirs: none"),
        ({"groups": ["cooks"]}, "theirs: cooks"),
    ]
    for changed, told in wrong:
        with pytest.raises(NotAllowed, match=told):
            door.enter(**changed)
    assert not door.people.tokens()


def test_an_id_token_counts_for_minutes_by_the_servers_clock(door: Door) -> None:
    now_s = door.world.clock.now_s()
    good = ({"iat": now_s - FRESH_S + 1}, {"iat": now_s + LEEWAY_S - 1}, {"exp": now_s - LEEWAY_S + 1})
    wrong = (
        {"iat": now_s - FRESH_S - 1},  # Though it is good for a day: whoever left keeps nothing that lets them in.
        {"iat": now_s + LEEWAY_S + 1, "exp": now_s + 900},
        {"nbf": now_s + LEEWAY_S + 1},
        {"exp": now_s - LEEWAY_S - 1},
    )
    for times in (*good, *wrong):
        changed: dict[str, Any] = {"exp": now_s + 86_400} | times
        if times in good:
            door.enter(**changed)
        else:
            with pytest.raises(NotAllowed, match="accept an ID token"):
                door.enter(**changed)


def test_an_id_token_is_signed_by_the_provider_with_a_key_of_its_own(door: Door) -> None:
    door.enter()
    pem = door.issuer.keys["first"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    claims, head = door.claims(), {"kid": "first"}
    stranger = jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), algorithm="ES256", headers=head)
    good = door.issuer.sign(claims).split(".")
    richer = letters(json.dumps(claims | {"groups": ["leads"]}).encode())
    for bad in (
        stranger,
        f"{good[0]}.{richer}.{good[2]}",
        f"{good[0]}.{good[1]}.",
        by_hand({"alg": "none"} | head, claims, ""),
        by_hand({"alg": "HS256"} | head, claims, pem),  # As if what everybody knows were a secret.
        *(by_hand({"alg": algorithm} | head, claims, "x") for algorithm in ALGORITHMS),  # For most its key is none.
        "",
        "a.b.c",
        "é",
    ):
        with pytest.raises(NotAllowed, match="accept an ID token"):
            door.logins.log_in(Login(id_token=bad), address="")
    assert len(door.people.tokens()) == 1


def test_what_a_login_began_with_must_come_back_in_the_id_token(door: Door) -> None:
    token = door.issuer.sign(door.claims(nonce="once"))
    door.logins.log_in(Login(id_token=token, nonce="once"), address="")
    for bad in (token, door.issuer.sign(door.claims())):
        with pytest.raises(NotAllowed, match="another login"):
            door.logins.log_in(Login(id_token=bad, nonce="twice"), address="")


def test_a_new_key_counts_at_once_and_strangers_do_not_have_the_provider_asked_all_the_time(door: Door) -> None:
    clock = door.world.clock
    door.enter()
    door.issuer.keys["second"] = ec.generate_private_key(ec.SECP256R1())
    clock.advance(AGAIN_S)
    door.enter(key="second")
    looks = len(door.issuer.asked)
    del door.issuer.keys["first"]
    other = Issuer()
    for _ in range(50):
        with pytest.raises(TooManyRequests, match="just asked for"):
            door.logins.log_in(Login(id_token=jwt.encode({}, other.keys["first"], "ES256", {"kid": "x"})), address="")
    assert len(door.issuer.asked) == looks
    clock.advance(AGAIN_S)
    with pytest.raises(NotAllowed, match="key 'x'"):
        door.logins.log_in(Login(id_token=jwt.encode({}, other.keys["first"], "ES256", {"kid": "x"})), address="")
    assert len(door.issuer.asked) == looks + 2


def test_a_key_that_was_withdrawn_ends_within_the_hour_and_a_silent_provider_lets_nobody_new_in(door: Door) -> None:
    clock = door.world.clock
    door.enter()
    old = door.issuer.keys
    door.issuer.keys = {"second": ec.generate_private_key(ec.SECP256R1())}
    clock.advance(KEYS_S - 1)
    door.issuer.answering = False
    door.issuer.keys |= old
    door.enter()  # What is known is enough.
    clock.advance(2)
    with pytest.raises(Unavailable):
        door.enter()
    door.issuer.keys.pop("first")
    door.issuer.answering = True
    clock.advance(AGAIN_S)
    door.issuer.keys |= {"third": old["first"]}
    with pytest.raises(NotAllowed, match="key 'first'"):
        door.logins.log_in(
            Login(id_token=jwt.encode(door.claims(), old["first"], "ES256", {"kid": "first"})), address=""
        )


def test_of_several_groups_the_first_that_the_lab_lists_counts_or_the_one_of_the_team_asked_for(door: Door) -> None:
    groups = ["seeing", "grasping", "leads", "cooks"]
    assert (door.enter(groups=groups).token.team, door.enter(groups="seeing").token.team) == (ARMS, VISION)
    assert door.enter(groups=groups, team="vision").token.role is TeamRole.MEMBER
    with pytest.raises(NotAllowed, match="arms, grasp, vision"):
        door.enter(groups=groups, team="lab")
    with pytest.raises(NotFound, match="nowhere"):
        door.enter(groups=["nowhere"])
    refused = [line for line in door.people.audit() if line.outcome == "refused"]
    assert [(line.holder, line.action) for line in refused] == [("bo@example.org", "log in")], "once in a while"


def test_logins_that_ended_are_forgotten_and_nobody_has_many(door: Door) -> None:
    lasting = door.people.new_token(NewToken(holder="bo@example.org", team=GRASP, days=0.001)).token.id
    door.enter(email="cy@example.org")
    made = []
    for _ in range(LOGINS_MAX + 1):
        door.world.clock.advance(1)
        made.append(door.enter())
    own = [token.id for token in door.people.tokens() if token.holder == "bo@example.org"]
    assert own == [*(one.token.id for one in reversed(made[1:])), lasting]
    door.world.clock.advance(9 * 3_600)
    last = door.enter()
    assert [token.id for token in door.people.tokens()] == [last.token.id, lasting], "a token stays until it is removed"


def test_who_is_blocked_loses_their_tokens_there_and_gets_no_other(door: Door) -> None:
    people = door.people
    kept = people.new_token(NewToken(holder="bo@example.org", team=VISION))
    given = people.new_token(NewToken(holder="bo@example.org", team=GRASP))
    entered, other = door.enter(), door.enter(email="cy@example.org")
    admin = people.caller(people.new_token(NewToken(holder="ada", team=ARMS, role=TeamRole.ADMIN)).secret)
    member = people.caller(other.secret)
    for caller, team in ((admin, "lab"), (admin, "vision"), (member, "grasp"), (member, "arms")):
        with pytest.raises(NotAllowed):
            people.block(team, "bo@example.org", caller)
    block = people.block("arms", "bo@example.org", admin)
    for secret in (given.secret, entered.secret):
        with pytest.raises(NotAllowed, match="nobody holds"):
            people.caller(secret)
    assert [people.caller(one.secret).team for one in (kept, other)] == [VISION, GRASP]
    with pytest.raises(NotAllowed, match="blocked in team arms by ada"):
        door.enter()
    with pytest.raises(NotAllowed, match="blocked in team arms"):
        people.new_token(NewToken(holder="bo@example.org", team=GRASP), admin)
    assert door.enter(groups=["seeing"]).token.team == VISION
    assert (people.blocked(admin), people.blocked(member), people.blocked()) == ((block,), (), (block,))
    people.block("arms", "bo@example.org", admin)
    vision = people.caller(people.new_token(NewToken(holder="vi", team=VISION, role=TeamRole.ADMIN)).secret)
    for caller, team in ((vision, "arms"), (admin, "grasp"), (people.caller(kept.secret), "arms")):
        with pytest.raises(NotFound):
            people.unblock(team, "bo@example.org", caller)
    people.unblock("arms", "bo@example.org", admin)
    assert door.enter().token.team == GRASP
    told = [(line.action, line.target) for line in people.audit() if "block" in line.action and line.outcome == "done"]
    assert told == [("block somebody", "bo@example.org")] * 2 + [("unblock somebody", "bo@example.org")]
    people.block(LAB, "bo@example.org")
    for groups in (["seeing"], ["grasping"]):
        with pytest.raises(NotAllowed, match="blocked in team lab"):
            door.enter(groups=groups)
    with pytest.raises(InvalidInput):
        people.block("arms", "\x1b[2J")


def test_a_person_may_be_named_by_another_claim_and_a_login_of_a_second_team_needs_trust(world: World) -> None:
    door = Door(world, replace(OIDC, holder_claim="upn", groups_claim="role", hours=1.0))
    made = door.enter(upn="EVE", role="seeing")
    assert (made.token.holder, made.token.team) == ("eve", VISION)
    with pytest.raises(InvalidInput, match="holder"):
        door.enter(upn="Eve Smith", role="seeing")
    control = world.control
    people = People(
        control.store,
        control.pictures,
        world.clock,
        SeededDice(9, "people"),
        SecretKeys(world.keys, SeededDice(9, "keys")),
        lambda: None,
        settings=Settings(one_line=True),
    )
    walled = Logins(people, OIDC, door.issuer.fetch, world.clock)
    with pytest.raises(Conflict, match="one account"):
        walled.log_in(Login(id_token=door.issuer.sign(door.claims())), address="")


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "http://login.example.org"},
        {"issuer": "login.example.org"},
        {"client_id": ""},
        {"scopes": ("email",)},
        {"hours": 0.0},
        {"hours": 1e4},
        {"hours": float("nan")},
        {"roles": ()},
    ],
)
def test_a_provider_that_cannot_be_trusted_or_lets_nobody_in_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=f"oidc.{next(iter(changed))}"):
        replace(OIDC, **changed)
    for team, role in ((ARMS, TeamRole.AUDITOR), (TeamName(LAB), TeamRole.ATTEMPT), (TeamName("No"), TeamRole.MEMBER)):
        with pytest.raises(InvalidInput):
            GroupRole(group="g", team=team, role=role)


def test_a_provider_that_calls_itself_another_is_not_believed(door: Door) -> None:
    for told in (
        {"issuer": f"{ISSUER}/", "jwks_uri": f"{ISSUER}/keys"},
        {"issuer": ISSUER, "jwks_uri": "http://x/k"},
        {},
    ):
        logins = Logins(door.people, OIDC, lambda url, told=told: told, door.world.clock)  # type: ignore[misc]
        with pytest.raises(Unavailable, match="to the letter"):
            logins.log_in(Login(id_token=door.issuer.sign(door.claims())), address="")


def test_logging_in_over_http_needs_no_token_and_tells_no_secret(door: Door) -> None:
    http = TestClient(create_app(door.world.control, None, door.logins))
    offer = decode(LoginOffer, http.get("/v1/login").content)
    assert (offer.issuer, offer.client_id) == (ISSUER, "mainspring")
    answer = http.post("/v1/login", content=encode(Login(id_token=door.issuer.sign(door.claims()))))
    made = decode(TokenMade, answer.content)
    assert http.get("/v1/whoami", headers={"Authorization": f"Bearer {made.secret}"}).status_code == 200
    for bad, status in ((b"{}", 400), (b"[", 400), (b" " * 40_000, 413), (encode(Login(id_token="x")), 403)):
        assert http.post("/v1/login", content=bad).status_code == status
    without = TestClient(create_app(door.world.control))
    assert without.get("/v1/login").status_code == without.post("/v1/login", content=b"{}").status_code == 404

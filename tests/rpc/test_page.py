"""The page in a real browser: what it shows, that it asks nobody else, fits a phone, and says when it is old.

A recorded answer of ``/api/overview`` (four validators, two workers of which one was away for some rounds) stands in
for an hour of training; its fields are compared with what the server answers today.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find_browser

from chain.rpc.reads import describe_interface

pytestmark = pytest.mark.integration

RECORDED = json.loads((Path(__file__).parents[1] / "vectors" / "overview.json").read_text())
WIDTHS = (1280, 390)
BYTE_RECIPE = '[model]\nvocabulary = 256\n\n[data]\ntokenizer_digest = ""\n'
MIN_LETTER_PX = 11


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    binary = find_browser()
    if binary is None:
        pytest.skip("no Chromium: install one (Debian: apt-get install chromium; or playwright install chromium)")
    with Browser(binary) as made:
        yield made


@pytest.fixture
def show(browser: Browser, solo: Any) -> Iterator[Callable[..., None]]:
    """Return a function that opens the page with the recorded overview, or with its own."""

    def open_page(fragment: str = "", *, width: int = 1280, is_dark: bool = False, is_recorded: bool = True) -> None:
        browser.requests.clear()
        browser.complaints.clear()
        browser.answers = record_answers(BYTE_RECIPE) if is_recorded else {}
        browser.open(f"{solo.url}/#{fragment}", width=width, height=900, is_dark=is_dark)
        browser.wait_for("document.getElementById('fresh').className === 'live'")

    yield open_page
    browser.answers = {}


def record_answers(recipe: str) -> dict[str, bytes]:
    """Return what a node with the recorded overview, whose run has this recipe, answers."""
    answer = json.dumps({"height": 1, "answer": "0x" + recipe.encode().hex()}).encode()
    return {"/api/overview": json.dumps(RECORDED).encode(), "/api/read/Training/recipe": answer}


def test_recorded_overview_has_the_fields_of_todays(solo: Any) -> None:
    with urllib.request.urlopen(solo.url + "/api/overview", timeout=10) as response:
        today = json.load(response)
    assert set(RECORDED) == set(today)
    assert set(RECORDED["chain"]) == set(today["chain"])
    assert set(RECORDED["chain"]["blocks"][0]) == set(today["chain"]["blocks"][0])
    assert set(RECORDED["staking"]["params"]) == set(today["staking"]["params"])
    assert set(RECORDED["storage"]["tiers"][0]) == set(today["storage"]["tiers"][0])
    if today["transactions"]:
        assert set(RECORDED["transactions"][0]) == set(today["transactions"][0])


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_is_shown(width: int, is_dark: bool, browser: Browser, show: Callable[..., None], solo: Any) -> None:
    show("training", width=width, is_dark=is_dark)
    rounds, members = RECORDED["run"]["rounds"], RECORDED["run"]["members"]
    shown = browser.ask("document.getElementById('training').innerText")
    for member in members:
        assert member["worker"][:8] in shown
    assert browser.ask("document.querySelectorAll('#rounds .round').length") == len(rounds)
    updates = sum(len(each["updates"]) for each in rounds)
    assert browser.ask("document.querySelectorAll('#rounds .update').length") == updates
    cells = browser.ask("[...document.querySelectorAll('.fates tbody td')].map(cell => cell.title)")
    assert len(cells) == (len(members) + 1) * len(rounds)
    assert sum("accepted" in each for each in cells) == sum(
        update["fate"] == "ACCEPTED" for each in rounds for update in each["updates"]
    )
    assert any("nothing sent" in each for each in cells), "the rounds without one of the two"
    steps = browser.ask("[...document.querySelectorAll('#steps li')].map(step => step.innerText)")
    assert [step.split()[0] for step in steps] == ["open", "attest", "final", "void"], "unsealed: nothing is revealed"
    newest = max(each["info"]["round"] for each in rounds if each["info"]["state"] == "FINAL")
    assert f"round {newest}" in steps[2]
    assert " tokens an accepted update" in shown or "Pay\nnone" in shown
    assert re.search(r"Bond\s+[\d.]+ tokens?|Bond\s+[\d.]+ gwei", shown), "amounts have a unit"
    end = browser.ask("(box => box.scrollWidth - box.clientWidth - box.scrollLeft)(document.getElementById('fates'))")
    assert end <= 1, "the newest rounds are seen"
    points = browser.ask("document.querySelector('#curve .curve').getAttribute('d').split(/[ML]/).length - 1")
    assert points == len(RECORDED["run"]["evaluations"])
    assert browser.ask("document.documentElement.scrollWidth") <= width, "nothing sticks out on the right"
    background = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(13, 19, 23)") == is_dark
    assert {url.partition("/page")[0].partition("/api")[0].rstrip("/") for url in browser.requests} <= {
        solo.url,
        "about:blank",
    } | {url for url in browser.requests if url.startswith("data:")}, "nobody else is asked"
    assert browser.complaints == []


def test_each_member_has_a_colour_of_its_own(browser: Browser, show: Callable[..., None]) -> None:
    """Twenty-two members, most with addresses whose leading bytes are the same."""
    members = RECORDED["run"]["members"]
    num_recorded = len(members)
    members += [{**members[0], "worker": f"0x0492{index:036x}"} for index in range(20)]
    try:
        show("training")
        looks = browser.ask(
            "[...document.querySelectorAll('#members tbody tr')].map(row => [row.querySelector('.who').title,"
            " row.querySelector('.dot').className + row.querySelector('.dot').style.color])"
        )
        assert [worker for worker, _ in looks] == [each["worker"] for each in members]
        assert len({look for _, look in looks}) == len(members)
        assert len({look for _, look in looks[:6]}) == len({look.split("rgb")[1] for _, look in looks[:6]}) == 6
        elsewhere = browser.ask(
            "[...document.querySelectorAll('#rounds .who')].map(each => [each.title,"
            " each.querySelector('.dot').className + each.querySelector('.dot').style.color])"
        )
        assert elsewhere
        assert set(map(tuple, elsewhere)) <= set(map(tuple, looks)), "the same colour wherever a member stands"
    finally:
        del members[num_recorded:]


@pytest.mark.parametrize(
    ("recipe", "unit"),
    [
        (BYTE_RECIPE, "nats a byte"),
        ("[model]\nwidth = 8\n", "nats a byte"),
        ("[model]\nvocabulary = 50_257\n", "nats a token"),
        ('[data]\ntokenizer_digest = "ab12"\n', "nats a token"),
    ],
)
def test_losses_have_the_unit_of_the_recipe(
    recipe: str, unit: str, browser: Browser, show: Callable[..., None], solo: Any
) -> None:
    show("training")
    browser.answers = record_answers(recipe)
    browser.open(f"{solo.url}/", width=1280, height=900)
    shown = browser.wait_for("document.getElementById('lossNote').innerText && document.body.innerText")
    assert shown.count(unit) == 2
    assert len(re.findall(r"nats\b", shown)) == 2, "one wording"


def test_newest_rounds_are_seen_when_the_tab_is_opened_later(browser: Browser, show: Callable[..., None]) -> None:
    end = "(box => box.scrollWidth > box.clientWidth && box.scrollWidth - box.clientWidth - box.scrollLeft <= 1)"
    end += "(document.getElementById('fates'))"
    show("storage", width=390)
    browser.ask("document.getElementById('tab-training').click()")
    browser.wait_for(end, 5)
    browser.ask("document.getElementById('fates').scrollLeft = 40")
    browser.ask("document.getElementById('tab-storage').click()")
    browser.ask("document.getElementById('tab-training').click()")
    browser.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.ask("document.getElementById('fates').scrollLeft") == 40, "who looks back isn't moved"


@pytest.mark.parametrize("width", WIDTHS)
def test_letters_can_be_read_and_tabs_have_their_names(width: int, browser: Browser, show: Callable[..., None]) -> None:
    show("storage", width=width)
    browser.ask("document.getElementById('tab-training').click()")
    drawn = "Math.round(document.querySelector('#curve svg').viewBox.baseVal.width)"
    browser.wait_for(f"{drawn} === document.getElementById('curve').clientWidth", 5)
    sizes = browser.ask(
        "(svg => [...svg.querySelectorAll('text')].map(each => parseFloat(getComputedStyle(each).fontSize)"
        " * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))(document.querySelector('#curve svg'))"
    )
    assert min(sizes) >= MIN_LETTER_PX
    cut = browser.ask(
        "(svg => [...svg.querySelectorAll('text')].filter(each => each.getBoundingClientRect().right"
        " > svg.parentNode.getBoundingClientRect().right + 1).map(each => each.textContent))"
        "(document.querySelector('#curve svg'))"
    )
    assert cut == []
    tabs = browser.ask(
        "[...document.querySelectorAll('nav a')].map(each => [each.innerText, each.getBoundingClientRect().right])"
    )
    assert [name for name, _ in tabs] == ["Training", "Blocks", "Validators", "Storage", "Read contracts"]
    assert max(right for _, right in tabs) <= width
    assert browser.ask("scrollY") == 0, "nothing is hidden under the head"
    assert browser.complaints == []


def test_a_month_is_said_as_defined_and_as_measured(browser: Browser, show: Callable[..., None]) -> None:
    show("storage")
    blocks = RECORDED["chain"]["blocks"]
    pace = (blocks[0]["time"] - blocks[-1]["time"]) / (blocks[0]["height"] - blocks[-1]["height"])
    days = RECORDED["storage"]["blocksPerMonth"] * pace / 86_400
    shown = browser.ask("document.getElementById('pricing').innerText")
    assert "a block is 0.3 s" in shown
    assert "8,760,000 blocks and an hour 12,000" in shown
    assert f"at the measured {pace:.2f} s that month lasts {days:.1f} days" in shown
    temporary = browser.ask("document.querySelector('#tiers tbody tr').innerText")
    assert f"1 block ≈ {pace:.2f} s" in temporary
    assert "13.6986 gwei" in temporary, "10 / 730 / 10^6 tokens for a MB for an hour"


def test_why_an_update_did_not_count_is_written_out(browser: Browser, show: Callable[..., None]) -> None:
    original = json.dumps(RECORDED["run"]["rounds"][-1]["updates"][0])
    update = RECORDED["run"]["rounds"][-1]["updates"][0]
    update.update(fate="REFUSED", reason="MISSING_PAYLOAD", paid="0")
    try:
        show("training")
        text = browser.ask("[...document.querySelectorAll('.update')].at(-1).parentNode.innerText")
        assert "its payload could not be had" in text
        title = browser.ask("document.querySelector('.fates td.bad').title")
        assert "refused, its payload could not be had" in title
    finally:
        update.clear()
        update.update(json.loads(original))


@pytest.mark.parametrize("tab", ["blocks", "validators", "storage"])
def test_other_tabs_are_filled_and_fit_a_phone(tab: str, browser: Browser, show: Callable[..., None]) -> None:
    show(tab, width=390)
    shown = browser.ask(f"document.getElementById('{tab}').innerText")
    expected = {
        "blocks": [RECORDED["transactions"][0]["hash"][:8], RECORDED["transactions"][0]["call"]["function"]],
        "validators": [each["operator"][:8] for each in RECORDED["staking"]["validators"]],
        "storage": [each["url"] for each in RECORDED["storage"]["nodes"]] + ["temporary", "hot", "cold"],
    }[tab]
    assert [each for each in expected if each not in shown] == []
    assert browser.ask("document.documentElement.scrollWidth") <= 390
    place = browser.ask(f"(box => [box.left, box.right])(document.getElementById('tab-{tab}').getBoundingClientRect())")
    assert place[0] >= 0, "the chosen tab is seen"
    assert place[1] <= 390
    assert browser.complaints == []


def test_jailed_validators_and_proposals(browser: Browser, show: Callable[..., None]) -> None:
    staking = RECORDED["staking"]
    kept = json.dumps(staking)
    staking["validators"][0].update(jailedUntil=10**9, power=0, slashed=str(5 * 10**17))
    staking["proposals"] = [
        {
            "proposal": 1,
            "state": "PASSED",
            "name": "maxValidators",
            "value": "12",
            "activationHeight": 4321,
            "proposer": "0x" + "ab" * 20,
            "voters": [staking["validators"][1]["operator"], "0x" + "ab" * 20, "0x" + "cd" * 20],
        }
    ]
    try:
        show("validators")
        assert "jailed" in browser.ask("document.querySelector('#validatorList tbody tr').innerText")
        shown = browser.ask("document.getElementById('proposals').innerText")
        assert [
            word
            for word in ("Max validators", "12", "4,321", "3 votes, 25 % of the bonds", "passed")
            if word not in shown
        ] == []
    finally:
        staking.clear()
        staking.update(json.loads(kept))


def test_the_form_reads_what_the_client_reads(browser: Browser, show: Callable[..., None], solo: Any) -> None:
    show("read?contract=Storage&function=quote&tier=1&sizeBytes=1000000&blocks=7", is_recorded=False)
    browser.wait_for("document.getElementById('ask') !== null")
    browser.ask("document.getElementById('ask').click()")
    browser.wait_for("document.getElementById('answered').textContent.startsWith('at block')")
    shown = browser.ask("document.getElementById('answer').innerText")
    assert shown == str(solo.client.storage.quote(1, 1_000_000, 7))
    browser.ask("document.getElementById('form').elements.tier.value = '256'")
    browser.ask("document.getElementById('ask').click()")
    browser.wait_for("document.getElementById('answer').innerText.includes('expected 0 .. 2^8 - 1')")


def test_every_view_has_a_form(browser: Browser, show: Callable[..., None]) -> None:
    show("read", is_recorded=False)
    browser.wait_for("document.getElementById('ask') !== null")
    choose = "{const s = document.getElementById('%s'); s.value = '%s'; s.dispatchEvent(new Event('change'));}"
    for contract in describe_interface():
        browser.ask(choose % ("contract", contract["contract"]))
        names = browser.ask("[...document.getElementById('function').options].map(option => option.value)")
        assert names == [each["name"] for each in contract["functions"]]
        for function in contract["functions"]:
            browser.ask(choose % ("function", function["name"]))
            inputs = browser.ask("[...document.querySelectorAll('#form input')].map(each => each.name)")
            assert inputs == [each["name"] for each in function["inputs"]]


def test_looks_up_block_transaction_account_and_nonsense(
    browser: Browser, show: Callable[..., None], solo: Any
) -> None:
    sent = solo.faucet.send("Staking", "bond", value=7)
    show("blocks", is_recorded=False)
    search = "{document.getElementById('query').value = '%s'; document.getElementById('lookup').requestSubmit();}"
    for query, expected in (
        ("0x" + bytes(sent.transaction_hash).hex(), "Staking.Bonded"),
        (str(sent.height), f"Block {sent.height:,}"),
        (solo.faucet.address, "a person's account"),
        ("0x" + "00" * 18 + "1000", "a system contract"),
        ("0x" + "99" * 32, "was executed"),
        ("999999999", "no block 999999999"),
        ("<b>x</b>", "<b>x</b>"),
    ):
        browser.ask(search % query)
        browser.wait_for(f"document.getElementById('found').innerText.includes({json.dumps(expected)})")
    assert "Staking.bond" in browser.wait_for("document.getElementById('transactions').innerText")


def test_a_slow_answer_never_covers_a_later_one(browser: Browser, show: Callable[..., None], solo: Any) -> None:
    """The first of two look-ups is answered last: what was asked last stays."""
    solo.chain.mine(3)
    show("blocks", is_recorded=False)
    browser.ask(
        """{
        const real = window.fetch;
        window.fetch = (path, ...rest) => String(path).includes("api/blocks/1")
            ? new Promise(done => { window.release = () => done(real(path, ...rest)); }) : real(path, ...rest);
        }"""
    )
    search = "{document.getElementById('query').value = '%s'; document.getElementById('lookup').requestSubmit();}"
    browser.ask(search % "1")
    browser.wait_for("window.release !== undefined")
    browser.ask(search % "2")
    browser.wait_for("document.getElementById('found').innerText.includes('Block 2')")
    browser.ask("window.release()")
    browser.ask("fetch('api/blocks/3').then(answer => answer.text())")
    browser.ask("new Promise(done => setTimeout(done, 100))")
    assert "Block 2" in browser.ask("document.getElementById('found').innerText")


def test_says_how_old_it_is_when_the_node_is_silent(browser: Browser, show: Callable[..., None]) -> None:
    show("training")
    browser.answers = {"/api/overview": b'{"error":"no genesis yet"}'}
    browser.wait_for("!document.getElementById('banner').hidden")
    banner = browser.ask("document.getElementById('banner').innerText")
    assert "No fresh data for" in banner
    assert "no genesis yet" in banner
    assert browser.ask("document.querySelectorAll('#rounds .round').length") > 0, "the last that was read stays"


def test_picture_is_no_empty_page(browser: Browser, show: Callable[..., None], tmp_path: Path) -> None:
    show("training")
    browser.picture(tmp_path / "page.png")
    data = (tmp_path / "page.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(base64.b64encode(data)) > 40_000, "a blank page compresses to a few kB"

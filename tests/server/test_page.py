import re

import pytest

from pelton.server.page_files import page_files
from tests.support.browser import Browser, find_browser
from tests.support.stand_in_server import StandInServer, metrics_text

QUESTION = ".question .content"
ANSWER = "article:last-of-type .content"
NO_FIGURE = "\N{EN DASH}"


@pytest.fixture(scope="module")
def browser():
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with Browser(path) as running:
        yield running


@pytest.fixture
def server():
    with StandInServer() as running:
        yield running


@pytest.fixture
def tab(browser, server):
    """The page, loaded, at work without a problem until the test ends."""
    opened = browser.open(server.url)
    opened.wait_for_text("#model", "tiny-llama")
    yield opened
    opened.close()
    assert [problem for problem in opened.problems if "Failed to load resource" not in problem] == []


def ask(tab, server, text):
    tab.click("#prompt")
    tab.type(text)
    tab.press("Enter")
    return server.next_exchange()


def converse(tab, server, question, answer):
    exchange = ask(tab, server, question)
    exchange.begin()
    exchange.send_text(answer, "stop")
    exchange.finish()
    tab.wait_for("document.querySelector('.answer:last-of-type').getAttribute('aria-busy') === 'false'")


def set_field(tab, selector, text):
    tab.evaluate(f"document.querySelector('{selector}').select()")
    tab.type(text)


class TestFiles:
    def test_paths_and_types(self):
        types = {path: file.content_type for path, file in page_files().items()}
        assert types["/"] == "text/html; charset=utf-8"
        assert types["/page/style.css"] == "text/css; charset=utf-8"
        assert types["/page/page.js"] == "text/javascript; charset=utf-8"

    def test_everything_is_allowed_from_this_server_only(self):
        for file in page_files().values():
            assert file.headers["Content-Security-Policy"].startswith("default-src 'self';")
            assert file.headers["X-Content-Type-Options"] == "nosniff"

    def test_nothing_comes_from_elsewhere(self):
        for path, file in page_files().items():
            addresses = set(re.findall(r"https?://[^\s\"')]+", file.content.decode()))
            assert addresses <= {"http://www.w3.org/2000/svg"}, path

    def test_what_the_page_refers_to_is_there(self):
        page = page_files()["/"].content.decode()
        referred = set(re.findall(r"(?:src|href)=\"([^\"]+)\"", page))
        assert referred
        assert {f"/{name}" for name in referred} <= page_files().keys()


class TestChat:
    def test_text_grows_as_it_comes(self, tab, server):
        exchange = ask(tab, server, "Hello?")
        assert tab.text(QUESTION) == "Hello?"
        exchange.begin()
        exchange.send_text("One")
        tab.wait_for_text(ANSWER, "One")
        assert tab.text(ANSWER) == "One"
        exchange.send_text(" two")
        tab.wait_for_text(ANSWER, "One two")
        exchange.send_text("", "stop")
        exchange.finish(num_tokens=12)
        tab.wait_for_text(".answer .note", "12 tokens")
        assert "tok/s" in tab.text(".answer .note")
        assert tab.evaluate("document.querySelector('#announcement').textContent") == "One two"

    def test_request(self, tab, server):
        exchange = ask(tab, server, "Hello?")
        exchange.refuse(500, "enough")
        assert exchange.path == "/v1/chat/completions"
        assert exchange.body == {
            "model": "tiny-llama",
            "messages": [{"role": "user", "content": "Hello?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        assert exchange.headers["Authorization"] is None

    def test_settings_go_into_the_request(self, tab, server):
        set_field(tab, "#system", "Be brief.")
        set_field(tab, "#temperature", "0.5")
        set_field(tab, "#top-p", "0.9")
        set_field(tab, "#max-tokens", "7")
        set_field(tab, "#seed", "42")
        exchange = ask(tab, server, "Hello?")
        exchange.refuse(500, "enough")
        assert exchange.body["messages"][0] == {"role": "system", "content": "Be brief."}
        sampling = {name: exchange.body[name] for name in ("temperature", "top_p", "max_tokens", "seed")}
        assert sampling == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 42}

    def test_impossible_setting_is_not_sent(self, tab, server):
        set_field(tab, "#top-p", "2")
        tab.click("#prompt")
        tab.type("Hello?")
        tab.press("Enter")
        tab.wait_for("document.activeElement.id === 'top-p'")
        assert tab.evaluate("document.querySelector('#prompt').value") == "Hello?"
        set_field(tab, "#top-p", "1")
        ask(tab, server, " Again").refuse(500, "enough")
        assert tab.text(QUESTION) == "Hello? Again"

    def test_conversation_is_kept_until_a_new_one_starts(self, tab, server):
        converse(tab, server, "First?", "One.")
        exchange = ask(tab, server, "Second?")
        exchange.begin()
        exchange.finish()
        roles = [(message["role"], message["content"]) for message in exchange.body["messages"]]
        assert roles == [("user", "First?"), ("assistant", "One."), ("user", "Second?")]
        tab.click("#new-conversation")
        assert tab.evaluate("document.querySelectorAll('article').length") == 0
        exchange = ask(tab, server, "Third?")
        exchange.refuse(500, "enough")
        assert [message["content"] for message in exchange.body["messages"]] == ["Third?"]

    def test_new_conversation_stops_the_answer_and_forgets_it(self, tab, server):
        exchange = ask(tab, server, "First?")
        exchange.begin()
        exchange.send_text("Never ending")
        tab.wait_for_text(ANSWER, "Never")
        tab.click("#new-conversation")
        exchange.wait_for_disconnect()
        exchange = ask(tab, server, "Second?")
        exchange.refuse(500, "enough")
        assert [message["content"] for message in exchange.body["messages"]] == ["Second?"]

    def test_stop_closes_the_connection_and_keeps_what_came(self, tab, server):
        exchange = ask(tab, server, "Count.")
        exchange.begin()
        exchange.send_text("1 2 3")
        tab.wait_for_text(ANSWER, "1 2 3")
        tab.click("#stop")
        exchange.wait_for_disconnect()
        tab.wait_for_text(".answer .note", "Stopped")
        assert tab.text(ANSWER) == "1 2 3"
        assert tab.evaluate("document.querySelector('.error')") is None
        exchange = ask(tab, server, "Go on.")
        exchange.refuse(500, "enough")
        assert exchange.body["messages"][1] == {"role": "assistant", "content": "1 2 3"}

    def test_escape_stops_a_request_that_still_waits(self, tab, server):
        exchange = ask(tab, server, "Count.")
        tab.press("Escape")
        exchange.wait_for_disconnect()
        tab.wait_for_text(".answer .note", "Stopped")

    def test_limit_of_tokens_is_told(self, tab, server):
        exchange = ask(tab, server, "Count.")
        exchange.begin()
        exchange.send_text("1", "length")
        exchange.finish(num_tokens=1)
        tab.wait_for_text(".answer .note", "Ended by the limit of tokens")
        assert "1 token " in tab.text(".answer .note")

    def test_one_answer_at_a_time(self, tab, server):
        exchange = ask(tab, server, "First?")
        exchange.begin()
        exchange.send_text("One")
        tab.wait_for_text(ANSWER, "One")
        tab.type("Second?")
        tab.press("Enter")
        exchange.send_text(" more", "stop")
        exchange.finish()
        tab.wait_for("!document.querySelector('#send').hidden")
        assert tab.evaluate("document.querySelector('#prompt').value") == "Second?"
        assert not server.has_exchange()

    def test_shift_enter_starts_a_new_line(self, tab, server):
        tab.click("#prompt")
        tab.type("a")
        tab.press("Enter", shift=True)
        tab.type("b")
        tab.press("Enter")
        exchange = server.next_exchange()
        exchange.refuse(500, "enough")
        assert exchange.body["messages"][0]["content"] == "a\nb"

    def test_choice_of_models(self, tab, server):
        server.models = [{"id": "one"}, {"id": "two"}]
        tab.load(f"{server.url}?again")
        tab.wait_for_text("#model", "one")
        tab.evaluate("""(() => {
            const choice = document.querySelector("#model-choice");
            choice.value = "two";
            choice.dispatchEvent(new Event("change"));
        })()""")
        exchange = ask(tab, server, "Hello?")
        exchange.refuse(500, "enough")
        assert exchange.body["model"] == "two"


class TestText:
    def test_html_is_not_read(self, tab, server):
        text = '<img src="x" onerror="document.title = 1"><script>document.title = 2</script><b>bold</b> &amp;'
        converse(tab, server, text, text)
        assert tab.text(ANSWER) == text
        assert tab.text(QUESTION) == text
        assert tab.evaluate("document.querySelectorAll('article :is(img, script, b)').length") == 0
        assert tab.evaluate("document.title") == "Pelton"

    def test_html_in_an_error_is_not_read(self, tab, server):
        ask(tab, server, "Hello?").refuse(400, "<b>bad</b>")
        tab.wait_for_text(".error", "<b>bad</b>")
        assert tab.evaluate("document.querySelectorAll('.error b').length") == 0

    def test_characters_cut_between_packets(self, tab, server):
        exchange = ask(tab, server, "Hello?")
        exchange.begin()
        data = exchange.encode(exchange.text_event("naïve 水 🌊", "stop"))
        for byte in (0xAF, 0xB0, 0x8C):  # the last byte of ï, the last of 水, and the third of the wave
            cut = data.index(byte)
            exchange.send_text(f"{byte} ")
            exchange.send_bytes(data[:cut])
            tab.wait_for_text(ANSWER, f"{byte} ")
            exchange.send_bytes(data[cut:])
        exchange.finish()
        tab.wait_for("!document.querySelector('#send').hidden")
        assert tab.text(ANSWER) == "175 naïve 水 🌊176 naïve 水 🌊140 naïve 水 🌊"

    def test_lines_and_code(self, tab, server):
        converse(tab, server, "Code?", "Here:\n  so\n\n```python\nif a:\n    b()\n```\n\nOr `c` and ```d```.")
        blocks = tab.evaluate(f"[...document.querySelector('{ANSWER}').children].map((e) => [e.tagName, e.innerText])")
        assert blocks == [["P", "Here:\n  so"], ["PRE", "if a:\n    b()"], ["P", "Or `c` and ```d```."]]

    def test_end_is_followed_unless_the_reader_scrolls_away(self, tab, server):
        exchange = ask(tab, server, "Count.")
        exchange.begin()
        exchange.send_text("line\n" * 100)
        at_end = "(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight < 2)"
        tab.wait_for(f"document.querySelectorAll('{ANSWER} p').length")
        tab.wait_for(f"{at_end}(document.querySelector('#conversation'))")
        tab.evaluate("""new Promise((resolve) => {
            const list = document.querySelector("#conversation");
            list.addEventListener("scroll", resolve, {once: true});
            list.scrollTop = 5;
        })""")
        exchange.send_text("the end", "stop")
        exchange.finish(num_tokens=3)
        tab.wait_for_text(".answer .note", "3 tokens")
        assert tab.evaluate("document.querySelector('#conversation').scrollTop") == 5


class TestErrors:
    def test_error_in_mid_stream(self, tab, server):
        exchange = ask(tab, server, "Hello?")
        exchange.begin()
        exchange.send_text("So far")
        exchange.send_event({"error": {"message": "the engine failed", "type": "InternalServerError", "code": 500}})
        exchange.finish()
        tab.wait_for_text(".error", "The engine failed")
        assert tab.text(ANSWER) == "So far"

    def test_end_without_done(self, tab, server):
        exchange = ask(tab, server, "Hello?")
        exchange.begin()
        exchange.send_text("So far")
        exchange.end_body()
        tab.wait_for_text(".error", "The connection ended before the answer did.")

    def test_broken_connection(self, tab, server):
        exchange = ask(tab, server, "Hello?")
        exchange.begin()
        exchange.send_text("So far")
        tab.wait_for_text(ANSWER, "So far")
        exchange.break_off()
        tab.wait_for_text(".error", "The connection to the server was lost.")

    def test_what_failed_is_not_part_of_the_conversation(self, tab, server):
        exchange = ask(tab, server, "First?")
        exchange.begin()
        exchange.send_text("So far")
        exchange.end_body()
        tab.wait_for_text(".error", "Try again")
        exchange = ask(tab, server, "Second?")
        assert [message["content"] for message in exchange.body["messages"]] == ["Second?"]
        assert "Try again" not in tab.text("#conversation")
        exchange.refuse(500, "enough")

    def test_try_again(self, tab, server):
        ask(tab, server, "Hello?").refuse(503, "the queue is full", {"Retry-After": "3"})
        tab.wait_for_text(".error", "The queue is full (Try again in 3 s.)")
        tab.click(".error button")
        exchange = server.next_exchange()
        assert [message["content"] for message in exchange.body["messages"]] == ["Hello?"]
        exchange.begin()
        exchange.send_text("Hi.", "stop")
        exchange.finish()
        tab.wait_for_text(ANSWER, "Hi.")
        assert tab.evaluate("document.querySelectorAll('article').length") == 2
        assert tab.evaluate("document.querySelector('.error')") is None

    def test_plain_completion_without_a_chat_template(self, tab, server):
        ask(tab, server, "Once upon").refuse(400, "the model has no chat template; give one as chat_template")
        tab.wait_for_text(".error", "Plain completion works without one")
        tab.click(".error button")
        exchange = server.next_exchange()
        assert exchange.path == "/v1/completions"
        assert exchange.body["prompt"] == "Once upon"
        assert "messages" not in exchange.body
        exchange.begin()
        exchange.send_text(" a time", "stop")
        exchange.finish(num_tokens=2)
        tab.wait_for_text(ANSWER, " a time")
        assert tab.evaluate("document.querySelector('[value=completion]').checked") is True
        exchange = ask(tab, server, "Again")
        assert exchange.path == "/v1/completions"
        exchange.refuse(500, "enough")


class TestKey:
    def test_key_is_asked_for_at_the_start(self, tab, server):
        server.api_key = "right"
        tab.load(f"{server.url}?again")
        tab.wait_for("document.activeElement.id === 'key'")
        tab.type("wrong")
        tab.press("Enter")
        tab.wait_for_text("#key-label", "does not accept")
        assert tab.evaluate("sessionStorage.length") == 0
        set_field(tab, "#key", "right")
        tab.press("Enter")
        tab.wait_for("document.querySelector('#key-form').hidden")
        tab.wait_for_text("#model", "tiny-llama")
        exchange = ask(tab, server, "Hello?")
        assert exchange.headers["Authorization"] == "Bearer right"
        exchange.refuse(500, "enough")

    def test_key_lasts_as_long_as_the_tab(self, tab, server):
        server.api_key = "right"
        tab.evaluate("sessionStorage.setItem('pelton-api-key', 'right')")
        tab.load(f"{server.url}?again")
        tab.wait_for_text("#model", "tiny-llama")
        assert tab.evaluate("document.querySelector('#key-form').hidden") is True
        assert tab.evaluate("localStorage.length + document.cookie.length") == 0

    def test_refused_question_is_sent_again_with_the_key(self, tab, server):
        server.api_key = "right"
        tab.click("#prompt")
        tab.type("Hello?")
        tab.press("Enter")
        tab.wait_for_text(".error", "The API key is missing or wrong")
        tab.wait_for("document.activeElement.id === 'key'")
        tab.type("right")
        tab.press("Enter")
        exchange = server.next_exchange()
        assert exchange.body["messages"][0]["content"] == "Hello?"
        exchange.begin()
        exchange.send_text("Hi.", "stop")
        exchange.finish()
        tab.wait_for_text(ANSWER, "Hi.")
        assert tab.evaluate("document.querySelector('.error')") is None


class TestFigures:
    def test_values_of_all_engines(self, tab, server):
        server.metrics = metrics_text(
            [
                ("num_requests_running", "0", 3),
                ("num_requests_running", "1", 4),
                ("num_requests_waiting", "0", 0),
                ("num_requests_waiting", "1", 1200),
                ("kv_cache_usage_perc", "0", 0.2),
                ("kv_cache_usage_perc", "1", 0.7),
                ("prefix_cache_queries_total", "0", 100),
                ("prefix_cache_queries_total", "1", 300),
                ("prefix_cache_hits_total", "0", 10),
                ("prefix_cache_hits_total", "1", 190),
            ],
            prefix="another:",
        )
        tab.wait_for_text("#figure-running", "7")
        shown = {name: tab.text(f"#figure-{name}") for name in ("running", "waiting", "kv-use", "prefix-hits")}
        assert shown == {"running": "7", "waiting": "1,200", "kv-use": "45 %", "prefix-hits": "50 %"}
        server.metrics = metrics_text([("num_requests_running", "0", 1)])
        tab.wait_for_text("#figure-running", "1")
        assert tab.text("#figure-waiting") == NO_FIGURE

    def test_tokens_per_second(self, tab, server):
        def count(generated, prompt):
            server.metrics = metrics_text(
                [("generation_tokens_total", "0", generated), ("prompt_tokens_total", "0", prompt)]
            )

        no_growth = "document.querySelector('#figure-generated').innerText === '0 tok/s'"
        count(1000, 0)
        tab.wait_for(no_growth)
        count(1500, 200_000)
        tab.wait_for("/^[1-9]/.test(document.querySelector('#figure-generated').innerText)")
        assert 0 < float(tab.text("#figure-generated").split()[0].replace(",", "")) <= 500
        tab.wait_for(no_growth)
        count(0, 0)  # the server has started anew
        tab.wait_for_text("#figure-generated", NO_FIGURE)
        tab.wait_for(no_growth)

    def test_sparklines_grow(self, tab, server):
        server.metrics = metrics_text([("num_requests_running", "0", 2)])
        points = "document.querySelector('.sparkline polyline').getAttribute('points').trim().split(' ')"
        tab.wait_for(f"{points}.length >= 3")
        highest = min(float(point.split(",")[1]) for point in tab.evaluate(points))
        assert highest < 3
        assert tab.evaluate("document.querySelectorAll('.sparkline').length") == 6

    def test_hidden_tab_does_not_ask(self, tab, server):
        def show(state):
            tab.evaluate(f"""(() => {{
                Object.defineProperty(document, "visibilityState", {{value: "{state}", configurable: true}});
                document.dispatchEvent(new Event("visibilitychange"));
            }})()""")

        server.metrics = metrics_text([("num_requests_running", "0", 1)])
        tab.wait_for_text("#figure-running", "1")
        show("hidden")
        tab.evaluate("new Promise((resolve) => setTimeout(resolve, 1200))")  # the update that was due
        num_scrapes = server.num_scrapes
        tab.evaluate("new Promise((resolve) => setTimeout(resolve, 2500))")
        assert server.num_scrapes == num_scrapes
        show("visible")
        server.metrics = metrics_text([("num_requests_running", "0", 5)])
        tab.wait_for_text("#figure-running", "5")

    def test_server_that_goes_away(self, browser):
        with StandInServer() as server:
            tab = browser.open(server.url)
            tab.wait_for_text("#model", "tiny-llama")
        tab.wait_for_text("#figures-note", "The server cannot be reached.")
        tab.click("#prompt")
        tab.type("Hello?")
        tab.press("Enter")
        tab.wait_for_text(".error", "The server cannot be reached.")
        tab.close()


class TestLayout:
    @pytest.mark.parametrize(("width", "height"), [(360, 640), (820, 700), (1400, 900)])
    def test_nothing_scrolls_sideways(self, tab, server, width, height):
        tab.resize(width, height)
        long = "x" * 300
        converse(tab, server, long, f"{long}\n```\n{long}\n```\nend")
        ask(tab, server, "Hello?").refuse(400, f"the model has no chat template {long}")
        tab.wait_for_text(".error", "Use plain completion")
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        assert tab.evaluate("document.documentElement.scrollHeight") == height
        assert tab.evaluate("(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(conversation)") == 0
        assert tab.evaluate("document.querySelector('.answer pre').scrollWidth") > width

    def test_wide_window_shows_all_at_once(self, tab):
        tab.resize(1400, 900)
        assert tab.evaluate("panel.offsetWidth") > 0
        assert tab.evaluate("document.querySelector('#panel-button').offsetWidth") == 0

    def test_narrow_window_shows_the_panel_when_asked(self, tab, server):
        tab.resize(360, 640)
        visible = "[panel.offsetWidth > 0, composer.offsetWidth > 0]"
        assert tab.evaluate(visible) == [False, True]
        tab.click("#panel-button")
        assert tab.evaluate(visible) == [True, False]
        assert tab.evaluate("(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(panel)") == 0
        tab.click("#seed")
        tab.type("1")
        tab.press("Escape")
        assert tab.evaluate(visible) == [False, True]
        exchange = ask(tab, server, "Hello?")
        assert exchange.body["seed"] == 1
        exchange.refuse(500, "enough")

    def test_colours_follow_the_system(self, tab):
        def lightness():
            colours = tab.evaluate(
                """[document.documentElement, composer, send].map(
                (element) => getComputedStyle(element).backgroundColor)"""
            )
            return [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]

        tab.prefer(prefers_color_scheme="light")
        light = lightness()
        tab.prefer(prefers_color_scheme="dark")
        dark = lightness()
        assert light[0] > 700
        assert light[1] > 700
        assert dark[0] < 120
        assert dark[1] < 120
        assert dark[2] > light[2]

    def test_text_stands_out(self, tab):
        """WCAG AA: 4.5 to 1 for text."""
        pairs = [("text", "back"), ("muted", "back"), ("muted", "surface"), ("text", "accent-soft")]
        pairs += [("on-accent", "accent"), ("error", "error-soft"), ("accent", "surface"), ("muted", "accent-soft")]
        for scheme in ("light", "dark"):
            tab.prefer(prefers_color_scheme=scheme)
            for front, back in pairs:
                colours = [
                    tab.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')")
                    for name in (front, back)
                ]
                assert contrast(*colours) >= 4.5, (scheme, front, back)


class TestAccess:
    def test_every_field_and_button_has_a_name(self, tab, server):
        ask(tab, server, "Hello?").refuse(401, "no")
        tab.wait_for("!document.querySelector('#key-form').hidden")
        nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
        controls = [
            node for node in nodes if node.get("role", {}).get("value") in ("button", "textbox", "radio", "spinbutton")
        ]
        assert len(controls) > 10
        assert [node for node in controls if not node["name"]["value"]] == []

    def test_order_of_the_focus(self, tab):
        tab.evaluate("document.querySelector('#new-conversation').focus()")
        for wanted in (
            "conversation",
            "prompt",
            "send",
            "chat",
            "system",
            "temperature",
            "top-p",
            "max-tokens",
            "seed",
        ):
            tab.press("Tab")
            assert tab.evaluate("document.activeElement.id || document.activeElement.value") == wanted

    def test_live_regions(self, tab, server):
        exchange = ask(tab, server, "Hello?")
        exchange.begin()
        exchange.send_text("One")
        tab.wait_for_text(ANSWER, "One")
        assert tab.evaluate("document.querySelector('.answer').getAttribute('aria-busy')") == "true"
        assert tab.evaluate("announcement.textContent") == ""
        exchange.send_event({"error": {"message": "broken", "code": 500}})
        exchange.finish()
        tab.wait_for("document.querySelector('.answer').getAttribute('aria-busy') === 'false'")
        assert tab.evaluate("document.querySelector('.error').getAttribute('role')") == "alert"
        assert tab.evaluate("announcement.getAttribute('aria-live')") == "polite"


def contrast(first, second):
    bright, dark = sorted((luminance(first.strip()), luminance(second.strip())), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

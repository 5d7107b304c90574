"""The pictures of README: the page of a real service that played the demo and then three more gangs.

`python -m tests.screenshots` writes `deploy/images/*.png`; a person looks at them before they are committed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from PIL import Image
from selenium.webdriver.common.keys import Keys

from deploy.demo.kube_scheduler import Player
from deploy.demo.play import EXAMPLES, Service, wait_for
from tests.support.service.browser import Browser, chromium
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, RACK, a_gang
from tests.support.waiting import until

IMAGES = Path(__file__).parents[1] / "deploy" / "images"
SIZE = {"width": 1280, "height": 817, "deviceScaleFactor": 1, "mobile": False}
# In this order: name, pods of 8 devices in one rack, priority. `urgent` gets the reservations of `finetune`.
GANGS = (("finetune", 3, 0), ("batch-eval", 12, 0), ("urgent", 4, 5000))
UNBOUND = "finetune"


def add_gang(service: Service, name: str, pods: int, priority: int) -> None:
    """Add a gang to the manifests of the service."""
    objects = a_gang(
        name,
        pods=pods,
        requests={GPU: 8},
        topo=RACK,
        schedulingGates=GATED,
        schedulerName="gang-scheduler",
        priority=priority,
    )
    objects[0]["spec"]["priority"] = priority
    path = service.manifests / f"{name}.part"
    path.write_text(yaml.safe_dump_all(objects))
    path.rename(path.with_suffix(".yaml"))


async def play(service: Service) -> None:
    """Bind the trees of the demo, then let one gang wait, one take its place, and one find none."""
    for name in ("cluster.yaml", "serve.yaml", "train.yaml"):
        shutil.copy(EXAMPLES / name, service.manifests)
    service.start()
    player = Player(service.url, service.manifests, service.data / "cluster.jsonl")
    try:
        await wait_for(
            lambda: states(service).keys() >= {"serve", "train"}, "the trees of the demo"
        )
        await player.run_until_idle()
        for name, pods, priority in GANGS:
            add_gang(service, name, pods, priority)
            await wait_for(
                lambda name=name: states(service).get(name) not in (None, "observed"), name
            )
        player.reload()
        bound = {
            pod.path for pod in player.view.pods.values() if pod.group and pod.group.name != UNBOUND
        }
        await player.run_until_idle(pods=bound, quiet_s=3)
        await wait_for(lambda: states(service)["urgent"] == "scheduled", "urgent to be scheduled")
    finally:
        await player.close()


def states(service: Service) -> dict[str, str]:
    """Return the states of the gangs, by name."""
    return {line["gang"].partition("/")[2]: line["state"] for line in service.get("/v1/gangs")}


def until_shown(browser: Browser, shown: Callable[[], bool], what: str) -> None:
    """Wait until the page shows something."""
    until(shown, what, every_s=0.05, state=lambda: browser.text("header, #detail")[:500])


def choose(browser: Browser, gang: str) -> None:
    """Click a gang of the list, and wait until its tree is shown."""
    browser.click_text("#gang-list .name", f"default/{gang}")
    until_shown(browser, lambda: f"default/{gang}" in browser.text("#detail h2"), gang)
    browser.run("document.activeElement.blur()")
    time.sleep(1)  # the map is drawn in frames of the browser


def save(browser: Browser, path: Path) -> None:
    """Write a picture of the page with 256 colours, a third of the bytes."""
    browser.picture(path)
    with Image.open(path) as picture:
        picture.load()
    picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


def take_pictures(service: Service) -> None:
    """Write the pictures."""
    (planned,) = service.get("/v1/events?type=PreemptionPlanned&gang=default/urgent")
    with chromium() as browser:
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SIZE)
        browser.open(f"{service.url}/ui/")
        until_shown(browser, lambda: len(browser.texts("#gang-list tr")) == 5, "five gangs")
        choose(browser, "serve")
        save(browser, IMAGES / "ui-now.png")
        choose(browser, "batch-eval")
        until_shown(browser, lambda: bool(browser.texts("#detail .help")), "what would help")
        save(browser, IMAGES / "ui-why.png")
        head = int(browser.one("#slider").get_attribute("max"))
        browser.press("#slider", *[Keys.ARROW_LEFT] * (head - planned["position"]))
        moment = f"event {planned['position']} of"
        until_shown(browser, lambda: moment in browser.text("#when"), moment)
        choose(browser, "urgent")
        save(browser, IMAGES / "ui-then.png")
        browser.open("about:blank")
        browser.open(f"{service.url}/ui/#view=preemptions&event={planned['position']}")
        until_shown(browser, lambda: bool(browser.texts("#detail .cost")), "the cost")
        until_shown(browser, lambda: len(browser.texts("#preemption-list > li")) == 2, "both")
        browser.click("#preemption-list > li:first-child summary")
        browser.run("document.activeElement.blur()")
        save(browser, IMAGES / "ui-preemptions.png")


def main() -> None:
    """Run a service in a temporary folder, and take the pictures."""
    folder = Path(tempfile.mkdtemp(prefix="gang-extender-screenshots-"))
    folder.chmod(0o755)  # as root the database runs as another user
    service = Service(folder)
    try:
        asyncio.run(play(service))
        take_pictures(service)
    finally:
        service.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

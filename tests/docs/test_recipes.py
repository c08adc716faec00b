"""The recipes work: their applications answer, their workers work, their units and manifests are valid."""

import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import redis
import yaml

from redis_message_queue import RedisMessageQueue, queues
from redis_message_queue.embedded import EmbeddedRedis
from tests import fork_server
from tests.concurrency import until
from tests.conftest import StartServer
from tests.docs.pages import DOCS, blocks_of

RECIPES = DOCS / "how-to" / "recipes"
BIN = Path(sys.executable).parent
# Recipes whose blocks are programs that tests/docs/test_blocks.py runs.
RUN_AS_PAGES = {
    "backups",
    "inbox",
    "move-a-queue",
    "priorities",
    "rate-limits",
    "results",
    "sentry",
    "structlog",
    "tasks",
}
LANGUAGES = ("python", "ini", "yaml", "dockerfile", "text", "sql")
# `rmq worker shop.handlers:ship orders`, for the recipes that leave the handler to the reader.
HANDLERS = 'def ship(message):\n    print(f"shipping {message.payload}", flush=True)\n\n\norders = ship\n'


def files_of(recipe: str) -> dict[str, str]:
    """The blocks of a recipe that begin with a file name, by that name."""
    found = {}
    for language in LANGUAGES:
        for block in blocks_of(RECIPES / f"{recipe}.md", language):
            if name := re.match(r"(?:#|--) ([\w./@-]+)\n", block.code):
                found[name[1]] = block.code
    return found


def commands_of(recipe: str) -> list[str]:
    return [line for block in blocks_of(RECIPES / f"{recipe}.md", "bash") for line in block.code.splitlines()]


def save(recipe: str, directory: Path) -> None:
    for name, text in files_of(recipe).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def environment(url: str, **more: str) -> dict[str, str]:
    """As the reader has it, and warnings are errors."""
    own = {"REDIS_URL": url, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return os.environ | own | {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "error"} | more


# Programs that pip installs for a module: as such they can be forked, which saves half a second.
MODULES = {"rmq": "redis_message_queue", "uvicorn": "uvicorn", "gunicorn": "gunicorn"}


def forked(words: list[str]) -> list[str]:
    """The same command for the fork server."""
    module = MODULES.get(Path(words[0]).name)
    return [sys.executable, "-m", module, *words[1:]] if module else words


@contextlib.contextmanager
def running(
    command: str | list[str], directory: Path, env: dict[str, str], statuses: tuple[int, ...] = (0, -signal.SIGTERM)
) -> Iterator["subprocess.Popen[str]"]:
    """A program whose output is in the file `output`. SIGTERM ends it, with one of these exit statuses."""
    words = forked(shlex.split(command) if isinstance(command, str) else command)
    with (directory / "output").open("a") as output:
        program = fork_server.Program(words, cwd=directory, env=env, stdout=output, stderr=output, text=True)
    try:
        yield program
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) in statuses, said(directory)
    finally:
        program.kill()
        program.wait()


def said(directory: Path) -> str:
    return (directory / "output").read_text(encoding="utf-8")


class Connection(http.client.HTTPConnection):
    """HTTP over a socket in the test's directory, so that no port can be taken."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def post(path: Path, url: str, body: Any) -> tuple[int, Any]:
    with contextlib.closing(Connection(path)) as connection:
        connection.request("POST", url, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


def listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial, contextlib.suppress(OSError):
        trial.connect(str(path))
        return True
    return False


def wait_for(condition: Callable[[], bool], program: "subprocess.Popen[str]", directory: Path) -> None:
    until(lambda: condition() or program.poll() is not None)
    assert program.poll() is None, said(directory)


def test_every_recipe_is_run_somewhere() -> None:
    """Here, or by the test of the blocks."""
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*recipes.py")]
    here = set(re.findall(r'(?:save|files_of|commands_of)\("([\w-]+)"', "".join(texts)))
    assert {page.stem for page in RECIPES.glob("*.md")} == RUN_AS_PAGES | here | {"index"}


def test_a_fastapi_application_publishes_once_and_gives_up_in_time(start_server: StartServer, tmp_path: Path) -> None:
    """A second order with the same id is not new; without Redis the answer is 503; the worker handles the order."""
    save("fastapi", tmp_path)
    address, server = tmp_path / "s", start_server()
    serve, work = commands_of("fastapi")
    env = environment(server.url)
    with running(serve.replace("--workers 4", f"--uds {address}"), tmp_path, env) as program:
        wait_for(lambda: listening(address), program, tmp_path)
        assert post(address, "/orders", {"id": 1}) == (202, {"new": True})
        assert post(address, "/orders", {"id": 1}) == (202, {"new": False})
        with running(f"{work} --until-empty", tmp_path, env) as worker:
            assert worker.wait(60) == 0, said(tmp_path)
        assert "shipping order 1" in said(tmp_path)
        server.stop()
        assert post(address, "/orders", {"id": 2})[0] == 503


@pytest.mark.parametrize("name", ["gunicorn", "uwsgi"])
def test_a_flask_application_publishes_from_forked_workers(
    name: str, clean_server: EmbeddedRedis, client: redis.Redis, tmp_path: Path
) -> None:
    """Its queue was made before the fork."""
    save("flask", tmp_path)
    command = next(line for line in commands_of("flask") if line.startswith(name))
    env = environment(clean_server.url)
    if name == "uwsgi":  # it does not look for modules where it is started, and a module of another loader warns
        env |= {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]), "PYTHONWARNINGS": ""}
    with running(command, tmp_path, env) as program:
        address = tmp_path / "shop.sock"
        wait_for(lambda: listening(address), program, tmp_path)
        assert post(address, "/orders", {"id": 1}) == (202, {"new": True})
        assert post(address, "/orders", {"id": 1}) == (202, {"new": False})
    assert client.llen("orders::pending") == 1


SETTINGS = """
import os
SECRET_KEY, ROOT_URLCONF, USE_TZ = "trial", "urls", True
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["*"]
REDIS_URL = os.environ["REDIS_URL"]
"""
MODELS = """
from django.db import models
class Order(models.Model):
    article = models.TextField()
    shipped = models.BooleanField(default=False)
"""
URLS = """
from django.urls import path
from shop.views import accept
urlpatterns = [path("orders", accept)]
"""
# What a reader has, or does in a browser: a table, a request, a request that fails after the publish was asked for.
VISIT = """
import django, json
django.setup()
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from shop.models import Order
from shop.queues import orders
call_command("migrate", run_syncdb=True, verbosity=0)
ask = lambda: Client().post("/orders", json.dumps({"article": "tea"}), content_type="application/json")
assert ask().status_code == 202
try:
    with transaction.atomic():
        assert ask().status_code == 202
        raise LookupError
except LookupError:
    pass
assert Order.objects.count() == orders().stats().pending == 1
call_command("ship_orders", "--until-empty")
assert Order.objects.filter(shipped=True).count() == 1
"""


def test_a_django_project_publishes_after_the_commit(clean_server: EmbeddedRedis, tmp_path: Path) -> None:
    """A rollback leaves no message, and the management command works through the queue."""
    save("django", tmp_path)
    for name, text in {"settings.py": SETTINGS, "shop/models.py": MODELS, "urls.py": URLS, "visit.py": VISIT}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for package in ("shop", "shop/management", "shop/management/commands"):
        (tmp_path / package / "__init__.py").touch()
    env = environment(clean_server.url, DJANGO_SETTINGS_MODULE="settings")
    ended = fork_server.run([sys.executable, "visit.py"], cwd=tmp_path, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 shipped, 0 dead letters" in ended.stdout


def exit_status_of(probe: list[str]) -> Callable[[], bool]:
    """Whether a command says yes."""
    return lambda: subprocess.run(probe).returncode == 0


def worker_works(
    command: list[str], is_ready: Callable[[], bool], directory: Path, url: str, client: redis.Redis
) -> None:
    """The command of a recipe becomes ready by its probe, handles a message, and ends with 0 on SIGTERM."""
    (directory / "shop").mkdir()
    (directory / "shop" / "__init__.py").touch()
    (directory / "shop" / "handlers.py").write_text(HANDLERS, encoding="utf-8")
    RedisMessageQueue("orders", client=client).publish("order 1")
    with running(command, directory, environment(url)) as program:
        wait_for(is_ready, program, directory)
        wait_for(lambda: "shipping order 1" in said(directory), program, directory)
    assert program.returncode == 0
    assert not is_ready()


def test_the_systemd_unit_is_valid_and_its_command_works(
    clean_server: EmbeddedRedis, client: redis.Redis, tmp_path: Path
) -> None:
    """systemd-analyze checks the unit where there is one; the command and the ready file are tried in any case."""
    unit = files_of("systemd")["rmq-worker@.service"]
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    ready = str(tmp_path / "ready")
    start = settings["ExecStart"].replace("/run/rmq-worker-%i/ready", ready).replace("%i", "orders")
    grace = re.search(r"--grace-seconds (\d+)", start)
    assert grace and int(settings["TimeoutStopSec"]) > int(grace[1])
    command = shlex.split(start.replace("/srv/shop/venv/bin/rmq", str(BIN / "rmq")))
    worker_works(command, exit_status_of(["test", "-e", ready]), tmp_path, clean_server.url, client)


@pytest.mark.in_full
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """With the paths of this machine."""
    unit = files_of("systemd")["rmq-worker@.service"].replace("/srv/shop/venv/bin", str(BIN))
    (tmp_path / "rmq-worker@.service").write_text(unit, encoding="utf-8")
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "rmq-worker@orders.service")]
    (tmp_path / "rmq-worker@orders.service").symlink_to(tmp_path / "rmq-worker@.service")
    ended = subprocess.run(verify, capture_output=True, text=True)
    assert "rmq-worker" not in ended.stderr, ended.stderr


INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "STOPSIGNAL", "HEALTHCHECK", "CMD"}


def test_the_commands_of_the_image_work(clean_server: EmbeddedRedis, client: redis.Redis, tmp_path: Path) -> None:
    """No daemon is needed: the Dockerfile is read, and its command and health check run here."""
    found = files_of("docker")
    lines = [line for line in found["Dockerfile"].splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} == INSTRUCTIONS
    assert lines[-1].startswith("CMD ")
    ready = str(tmp_path / "ready")
    command, check = (
        json.loads(re.search(r"\[.*\]", line)[0].replace("/tmp/ready", ready))  # type: ignore[index]
        for line in (lines[-1], next(line for line in lines if line.startswith("HEALTHCHECK")))
    )
    worker_works(command, exit_status_of(check), tmp_path, clean_server.url, client)
    services = yaml.safe_load(found["compose.yaml"])["services"]
    grace = int(command[command.index("--grace-seconds") + 1])
    assert int(services["worker"]["stop_grace_period"].rstrip("s")) > grace
    assert services["worker"]["depends_on"].keys() <= services.keys()


def test_the_server_of_the_compose_file_starts(tmp_path: Path) -> None:
    """With the same options, and it is as a queue wants it."""
    program, *options = yaml.safe_load(files_of("docker")["compose.yaml"])["services"]["redis"]["command"]
    assert program == "valkey-server"
    config = {name.removeprefix("--"): value for name, value in zip(options[::2], options[1::2], strict=True)}
    with EmbeddedRedis(config=config) as server, server.client() as client:
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"


def test_the_manifests_are_valid_and_their_commands_work(
    clean_server: EmbeddedRedis, client: redis.Redis, tmp_path: Path
) -> None:
    """Kubernetes' own schemas check them. The worker, its probes and the exporter run here."""
    found = files_of("kubernetes")
    worker, depth = (yaml.safe_load(found[name]) for name in ("worker.yaml", "depth.yaml"))
    for manifest in (worker, depth):
        kubernetes_validate.validate(manifest, "1.31", strict=True)
    pod = worker["spec"]["template"]["spec"]
    container = pod["containers"][0]
    port, host = str(free_port()), "127.0.0.1"
    (served,) = container["ports"]
    command = [
        {str(served["containerPort"]): port, "0.0.0.0": host}.get(word, word)
        for word in [*container["command"], *container["args"]]
    ]
    assert port in command
    assert pod["terminationGracePeriodSeconds"] > int(command[command.index("--grace-seconds") + 1])
    probes = [container[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe")]
    assert [probe["port"] for probe in probes] == [served["name"]] * 2

    def is_ready() -> bool:
        return all(answers_well(host, int(port), probe["path"]) for probe in probes)

    worker_works(command, is_ready, tmp_path, clean_server.url, client)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def answers_well(host: str, port: int, path: str) -> bool:
    with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection(host, port, timeout=60)) as ask:
        ask.request("GET", path)
        return ask.getresponse().status == 200
    return False


def test_keda_scales_on_a_metric_that_the_exporter_has(
    clean_server: EmbeddedRedis, client: redis.Redis, tmp_path: Path
) -> None:
    """The query names series that are there, for the deployment of the worker."""
    save("kubernetes", tmp_path)
    found = files_of("kubernetes")
    scale = yaml.safe_load(found["scale.yaml"])["spec"]
    assert scale["scaleTargetRef"]["name"] == yaml.safe_load(found["worker.yaml"])["metadata"]["name"]
    query = scale["triggers"][0]["metadata"]["query"]
    metric, queue, states = re.search(r'\((\w+)\{queue="(\w+)", state=~"([\w|]+)"\}', query).groups()
    RedisMessageQueue(queue, client=client).publish_many(["a", "b"])
    port = free_port()
    env = environment(clean_server.url, PORT=str(port))
    exporter = yaml.safe_load(found["depth.yaml"])["spec"]["template"]["spec"]["containers"][0]
    with running([sys.executable, *exporter["command"][1:]], tmp_path, env) as program:
        shown: list[str] = []

        def scraped() -> bool:
            with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as ask:
                ask.request("GET", exporter["readinessProbe"]["httpGet"]["path"])
                shown[:] = ask.getresponse().read().decode().splitlines()
            return bool(shown)

        wait_for(scraped, program, tmp_path)
        for state in states.split("|"):
            value = 2.0 if state == "pending" else 0.0
            assert f'{metric}{{queue="{queue}",state="{state}"}} {value}' in shown


@contextlib.contextmanager
def tls_proxy(directory: Path, host: str, port: int) -> Iterator[int]:
    """TLS in front of a server that has none: only the certificates of the recipe matter here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "redis.crt", directory / "redis.key")

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve(accepted: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(accepted, server_side=True) as outside,
            socket.create_connection(("127.0.0.1", port)) as inside,
        ):
            back = threading.Thread(target=pump, args=(inside, outside))
            back.start()
            pump(outside, inside)
            back.join()

    with socket.create_server((host, 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_client_with_the_ca_is_served_and_another_name_is_refused(
    clean_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """The commands of the page make the certificates; a name that is not in them is an error that says so."""
    save("tls", tmp_path)
    made = subprocess.run("\n".join(["set -e", *commands_of("tls")]), shell=True, cwd=tmp_path, capture_output=True)
    assert made.returncode == 0, made.stderr.decode()

    def publish(host: str) -> subprocess.CompletedProcess[str]:
        with tls_proxy(tmp_path, host, clean_server.port) as port:
            env = environment(f"rediss://{host}:{port}/0", REDIS_CA=str(tmp_path / "ca.crt"))
            return fork_server.run([sys.executable, "tls_shop.py"], cwd=tmp_path, env=env)

    assert publish("127.0.0.1").stdout == "order 1\n"
    refused = publish("127.0.0.2")
    assert refused.returncode == 1
    assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr


def test_each_user_of_the_acl_file_can_play_its_role(tmp_path: Path) -> None:
    """The doctor says so, and the site cannot do what the operator can."""
    (block,) = blocks_of(RECIPES / "acl.md", "text")
    first, *users = block.code.splitlines()
    assert first == "user default off", "Redis accepts no comments in this file"
    # The embedded server is started by the default user, who leaves once it runs.
    users = ["user default on nopass ~* &* +@all", *users]
    (tmp_path / "users.acl").write_text("\n".join(users) + "\n", encoding="utf-8")
    with EmbeddedRedis(config={"aclfile": str(tmp_path / "users.acl")}, password=False) as server:
        with server.client() as client:
            client.acl_setuser("default", enabled=False)
        site = redis.Redis(port=server.port, username="site", password="replace-me-1", decode_responses=True)
        admin = redis.Redis(port=server.port, username="admin", password="replace-me-0", decode_responses=True)
        operator = redis.Redis(port=server.port, username="operator", password="replace-me-3", decode_responses=True)
        with site, admin, operator:
            RedisMessageQueue("orders", client=site).publish("order 1")
            RedisMessageQueue("mails", client=admin).publish("mail 1")
            assert [one.name for one in queues(operator)] == ["orders"], "the other queue is not theirs"
        for line in commands_of("acl"):
            assignment, command = line.split(" ", 1)
            url = assignment.removeprefix("REDIS_URL=").replace("localhost:6379", f"127.0.0.1:{server.port}")
            words = forked([*shlex.split(command), "--read-only", "--json"])
            ended = fork_server.run(words, env=environment(url))
            found = [json.loads(row) for row in ended.stdout.splitlines()]
            assert [row["level"] for row in found if row["check"] == "permissions"] == ["ok"], ended.stdout
        site = redis.Redis(port=server.port, username="site", password="replace-me-1")
        with site, pytest.raises(redis.exceptions.NoPermissionError):
            site.flushall()

"""Jobs whose guests sleep: Nomad sees a task that runs, and what woke it."""

from tests.machine.conftest import Outside, eventually, inspect, ok
from tests.machine.nomad.agent import Agent, plugins
from tests.machine.nomad.jobs import NEVER_AGAIN, SERVER, Jobs, happens, hcl, refusal, running, says, unit

PORT = 'network {\n  port "web" {\n    static = 8080\n    to = 80\n  }\n}\n'
IDLE = '\nidle {\n  after = "5s"\n}\n'

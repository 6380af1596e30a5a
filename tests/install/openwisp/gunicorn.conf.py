"""How gunicorn serves the tests' openwisp-ipam."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1

wsgi_app = "django.core.wsgi:get_wsgi_application()"
# Django is loaded once, before the workers are forked.
preload_app = True
control_socket_disable = True
# Longer than any wait for the database.
timeout = 120


def post_fork(server, _worker):
    """Ties a worker to the server: a killed server leaves no worker that answers on its port."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server.pid:
        os.kill(os.getpid(), signal.SIGKILL)

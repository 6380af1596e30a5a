"""Makes a database with all tables, an administrator with a token, and an organization."""

import django
from django.core.management import call_command

django.setup()
call_command("migrate", verbosity=0)

from openwisp_users.models import Organization, User
from rest_framework.authtoken.models import Token

admin = User.objects.create_superuser("admin", "admin@example.org", "admin-password")
Token.objects.create(user=admin, key="0123456789abcdef0123456789abcdef01234567")
Organization.objects.create(
    id="00000000-0000-4000-8000-000000000001", name="tests", slug="tests"
)

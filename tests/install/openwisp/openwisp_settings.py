"""Settings of the tests' openwisp-ipam: one folder, SQLite, no other service."""

import os

SECRET_KEY = "for tests only"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "openwisp_urls"
AUTH_USER_MODEL = "openwisp_users.User"
SITE_ID = 1
STATIC_URL = "/static/"
# A user has one of the languages with a name of their own.
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.sites",
    "django.contrib.staticfiles",
    "openwisp_users.accounts",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "reversion",
    "openwisp_users",
    "openwisp_ipam",
    "openwisp_utils.admin_theme",
    "admin_auto_filters",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_yasg",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "loaders": [
                "openwisp_utils.loaders.DependencyLoader",
                "django.template.loaders.app_directories.Loader",
            ],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["OPENWISP_DATABASE"],
        # Seconds that a writer waits for another. A transaction that reads first would not wait
        # when it writes: making a user failed while others wrote.
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
    }
}
# Cheap ones: the passwords protect nothing.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
CELERY_TASK_ALWAYS_EAGER = True
CELERY_BROKER_URL = "memory://"

# Requests in a time for each user, as in 400/hour; each worker counts for itself.
RATE = os.environ.get("OPENWISP_RATE")
REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"ipam": RATE, "anon": None}}
OPENWISP_USERS_AUTH_THROTTLE_RATE = RATE

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["stderr"], "level": "ERROR", "propagate": False}},
}

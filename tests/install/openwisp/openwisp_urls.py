"""OpenWISP's paths, and one that tells which server answers."""

import os

from django.contrib import admin
from django.http import HttpResponse
from django.urls import include, path
from openwisp_users.api.urls import get_api_urls


def name(_request):
    return HttpResponse(os.environ["OPENWISP_NAME"], content_type="text/plain")


urlpatterns = [
    path("name", name),
    path("admin/", admin.site.urls),
    path("api/v1/", include("openwisp_utils.api.urls")),
    path("api/v1/", include((get_api_urls(), "users"), namespace="users")),
    path("", include("openwisp_ipam.urls")),
]

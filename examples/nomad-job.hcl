# A job whose groups take their addresses from pools, in the network of 70-ipam-delegated-nomad.conflist.
job "shop" {
  datacenters = ["dc1"]

  # One allocation, always with the same address.
  group "leader" {
    network {
      mode = "cni/shopnet"
    }

    meta {
      network-pool = "shop"
      network-ip   = "10.217.0.10"
    }

    task "lead" {
      driver = "docker"
      config {
        image   = "busybox:1"
        command = "sleep"
        args    = ["infinity"]
      }
    }
  }

  # Ten allocations, each with an address of its own out of the same pool.
  group "workers" {
    count = 10

    network {
      mode = "cni/shopnet"
    }

    meta {
      network-pool = "shop"
    }

    task "work" {
      driver = "docker"
      config {
        image   = "busybox:1"
        command = "sleep"
        args    = ["infinity"]
      }
    }
  }
}

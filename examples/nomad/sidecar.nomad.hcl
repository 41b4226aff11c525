# HAProxy in front of a unikernel, in the group's own network: TLS at the group's port, HTTP to 127.0.0.1:80.
# The node needs a certificate, and CNI's plugins: apt install containernetworking-plugins iptables, and cni_path in the agent's client block.
job "sidecar" {
  group "shop" {
    network {
      mode = "bridge"
      port "https" {
        to = 8443
      }
    }

    task "web" {
      driver = "solo5"

      config {
        unikernel = "net.hvt"
        ports     = ["80/tcp"] # for the proxy only: no label of the group leads to the guest
        args = [
          "--ipv4={net.service.ipv4_cidr}",
          "--ipv4-gateway={net.service.gateway4}",
        ]
      }

      resources {
        memory = 64
      }
    }

    task "proxy" {
      driver = "raw_exec"

      config {
        command = "/usr/sbin/haproxy"
        args    = ["-db", "-f", "${NOMAD_TASK_DIR}/haproxy.cfg"]
      }

      template {
        destination = "local/haproxy.cfg"
        data        = <<-END
          defaults
            mode http
            timeout connect 5s
            timeout client 30s
            timeout server 30s
          frontend https
            bind :8443 ssl crt /etc/ssl/private/shop.pem
            default_backend guest
          backend guest
            server guest 127.0.0.1:80
        END
      }

      resources {
        memory = 64
      }
    }
  }
}

/* In the guest's place where a peer runs no tender: answers every datagram to UDP port ARGV[1], or else to the port that
 * Nomad has allocated for the label dns. SIGTERM and SIGINT end it, also where it is the first process of its namespace. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void end(int number)
{
    (void)number;
    _exit(0);
}

int main(int argc, char **argv)
{
    const char *port = argc > 1 ? argv[1] : getenv("NOMAD_HOST_PORT_dns");
    struct sockaddr_in here = {.sin_family = AF_INET}, there;
    int handle = socket(AF_INET, SOCK_DGRAM, 0);
    signal(SIGTERM, end);
    signal(SIGINT, end);
    if (!port)
        return 2;
    here.sin_port = htons((unsigned short)atoi(port));
    if (handle < 0 || bind(handle, (struct sockaddr *)&here, sizeof here))
        return 1;
    for (;;) {
        char text[2048];
        socklen_t size = sizeof there;
        ssize_t length = recvfrom(handle, text, sizeof text, 0, (struct sockaddr *)&there, &size);
        if (length >= 0)
            sendto(handle, text, (size_t)length, 0, (struct sockaddr *)&there, size);
    }
}

// Gets a file on two connections, of which the second resumes the session: VERSION PORT CERTIFICATE.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

func main() {
	version := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[os.Args[1]]
	certificate, err := os.ReadFile(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	// Each request has a connection of its own.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		RootCAs: roots, MinVersion: version, MaxVersion: version,
		ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}}}
	for _, isSecond := range []bool{false, true} {
		response, err := client.Get("https://localhost:" + os.Args[2] + "/file.txt")
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			log.Fatal(err)
		}
		if response.TLS.DidResume != isSecond {
			log.Fatal("resumed: ", response.TLS.DidResume)
		}
		fmt.Print(string(body))
	}
}

// Plays one endpoint of a kubelet: kube-apiserver asks it to forward a port of a pod. The pods of the tests have no
// network of their own, so a port of a pod is that port of this machine, as with hostNetwork.
//
//	portforward 127.0.0.1:10250
//
// Pinned by `go get k8s.io/cri-streaming@VERSION && go mod tidy`; one version serves every kube-apiserver of the tests.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

const (
	idleTimeout     = 4 * time.Hour
	creationTimeout = 30 * time.Second
)

// host copies between a stream and a port of this machine.
type host struct{}

func (host) PortForward(_ context.Context, name, _ string, port int32, stream io.ReadWriteCloser) error {
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("pod %s, port %d: %w", name, port, err)
	}
	defer connection.Close()
	defer stream.Close()
	ended := make(chan error, 2)
	copyAll := func(to io.Writer, from io.Reader) {
		_, err := io.Copy(to, from)
		ended <- err
	}
	go copyAll(connection, stream)
	go copyAll(stream, connection)
	return <-ended
}

// certificate makes one for this run; kube-apiserver does not verify it without --kubelet-certificate-authority.
func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func main() {
	own, err := certificate()
	if err != nil {
		log.Fatal(err)
	}
	pods := http.NewServeMux()
	pods.HandleFunc("/portForward/{namespace}/{name}", func(w http.ResponseWriter, request *http.Request) {
		name := request.PathValue("namespace") + "/" + request.PathValue("name")
		options, err := portforward.NewV4Options(request)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		log.Printf("forwards a port of %s", name)
		protocols := portforward.SupportedProtocols
		portforward.ServePortForward(w, request, host{}, name, "", options, idleTimeout, creationTimeout, protocols)
	})
	server := &http.Server{
		Addr:    os.Args[1],
		Handler: pods,
		// SPDY takes the connection over, which HTTP/2 does not allow.
		TLSConfig:    &tls.Config{Certificates: []tls.Certificate{own}},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	log.Fatal(server.ListenAndServeTLS("", ""))
}

// Calls of kube-scheduler at once, on cold connections: its HTTP client (one http.Client, two idle connections a host, HTTP/2 by
// ALPN) filters PODS members of a gang on NODES, then binds each to the node of its answer; "filter" filters only.
//
//	coldcalls URL CA CERT KEY filter|bind PODS NODES
//
// It prints one line of JSON: dials, how many were open at once, connections that carried calls, calls answered, and refused.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

type counts struct {
	Dials, Open, OpenMax, Answered, Refused int64
	Connections                             int
	Seconds                                 float64
	Error                                   string
}

type counted struct {
	net.Conn
	open *int64
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { atomic.AddInt64(c.open, -1) })
	return c.Conn.Close()
}

func main() {
	url, ca, cert, key, what := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	pods, _ := strconv.Atoi(os.Args[6])
	nodes, _ := strconv.Atoi(os.Args[7])
	pem, err := os.ReadFile(ca)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		log.Fatal(err)
	}
	var n counts
	var lock sync.Mutex
	used := map[string]bool{}
	dialer := &net.Dialer{Timeout: 30 * time.Second}
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 60 * time.Second,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			atomic.AddInt64(&n.Dials, 1)
			open := atomic.AddInt64(&n.Open, 1)
			for most := atomic.LoadInt64(&n.OpenMax); open > most && !atomic.CompareAndSwapInt64(&n.OpenMax, most, open); {
				most = atomic.LoadInt64(&n.OpenMax)
			}
			return &counted{Conn: conn, open: &n.Open}, nil
		},
	}
	client := &http.Client{Transport: transport, Timeout: 300 * time.Second}
	call := func(verb string, body any, answer any) bool {
		sent, _ := json.Marshal(body)
		request, _ := http.NewRequest("POST", url+"/scheduler/"+verb, bytes.NewReader(sent))
		request.Header.Set("Content-Type", "application/json")
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			lock.Lock()
			used[info.Conn.LocalAddr().String()] = true
			lock.Unlock()
		}}
		reply, err := client.Do(request.WithContext(httptrace.WithClientTrace(context.Background(), trace)))
		var text []byte
		if err == nil {
			text, err = io.ReadAll(reply.Body)
			reply.Body.Close()
			if err == nil && reply.StatusCode != http.StatusOK {
				err = fmt.Errorf("%d %s", reply.StatusCode, text)
			}
		}
		if err == nil {
			err = json.Unmarshal(text, answer)
		}
		if err != nil {
			atomic.AddInt64(&n.Refused, 1)
			lock.Lock()
			n.Error = err.Error()
			lock.Unlock()
			return false
		}
		atomic.AddInt64(&n.Answered, 1)
		return true
	}
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
	}
	begin := time.Now()
	var all sync.WaitGroup
	for i := 0; i < pods; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			name := fmt.Sprintf("g-%d", i)
			uid := "uid-of-" + name
			metadata := map[string]any{"name": name, "namespace": "default", "uid": uid,
				"labels": map[string]string{"gang-extender.dev/pod-group": "g"}}
			pod := map[string]any{"metadata": metadata, "spec": map[string]any{"containers": []any{}}}
			var offered struct {
				NodeNames []string
				Error     string
			}
			if !call("filter", map[string]any{"Pod": pod, "NodeNames": names}, &offered) || what == "filter" {
				return
			}
			if len(offered.NodeNames) != 1 {
				lock.Lock()
				n.Error = fmt.Sprintf("%s: %d nodes, %s", name, len(offered.NodeNames), offered.Error)
				lock.Unlock()
				return
			}
			var bound struct{ Error string }
			if call("bind", map[string]any{"PodName": name, "PodNamespace": "default", "PodUID": uid,
				"Node": offered.NodeNames[0]}, &bound) && bound.Error != "" {
				lock.Lock()
				n.Error = bound.Error
				lock.Unlock()
			}
		}()
	}
	all.Wait()
	n.Seconds = time.Since(begin).Seconds()
	n.Connections = len(used)
	line, _ := json.Marshal(n)
	fmt.Println(string(line))
}

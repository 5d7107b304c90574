// An extender that does nothing but answer: every node that is offered may have the pod. It is the least that a
// call of kube-scheduler can cost, whatever answers; `make bench NAMES=storms` compares with it.
package main

import (
	"encoding/json"
	"log"
	"net"
	"net/http"
	"os"
)

type arguments struct {
	NodeNames json.RawMessage `json:"nodenames"`
}

func main() {
	http.HandleFunc("/scheduler/filter", func(answer http.ResponseWriter, request *http.Request) {
		var asked arguments
		if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		answer.Header().Set("Content-Type", "application/json")
		answer.Write([]byte(`{"nodenames":` + string(asked.NodeNames) + `}`))
	})
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, nil))
}

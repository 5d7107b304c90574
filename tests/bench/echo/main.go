// An extender that does nothing but answer: every node that is offered may have the pod. It is the least that a
// call of kube-scheduler can cost, whatever answers; `make bench NAMES=storms` compares with it. With a number of
// milliseconds as second argument it computes for so long before each answer, as an extender that does something.
package main

import (
	"encoding/json"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

const thisThread = 1 // RUSAGE_THREAD of Linux

type arguments struct {
	NodeNames json.RawMessage `json:"nodenames"`
}

// used returns the CPU time of this thread.
func used() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(thisThread, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// compute uses CPU time of this thread.
func compute(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for end := used() + d; used() < end; {
	}
}

func main() {
	computing := time.Duration(0)
	if len(os.Args) > 2 {
		ms, err := strconv.ParseFloat(os.Args[2], 64)
		if err != nil {
			log.Fatal(err)
		}
		computing = time.Duration(ms * float64(time.Millisecond))
	}
	http.HandleFunc("/scheduler/filter", func(answer http.ResponseWriter, request *http.Request) {
		var asked arguments
		if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		compute(computing)
		answer.Header().Set("Content-Type", "application/json")
		answer.Write([]byte(`{"nodenames":` + string(asked.NodeNames) + `}`))
	})
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, nil))
}

// A page that was opened from the disk (file:) may not start a Worker. This one runs the worker's script
// in a hidden frame instead, so that the search works there too. mkdocs.yml loads it on each page.
// It has what the search in English uses: messages to and from, heard with addEventListener.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow // of the same origin: an empty document is its parent's
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.scope.document.createElement("script")
      this.loaded = new Promise(resolve => (script.onload = resolve))
      script.src = url
      this.scope.document.body.append(script)
    }

    postMessage(data) {
      this.loaded.then(() =>
        this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })),
      )
    }
  }

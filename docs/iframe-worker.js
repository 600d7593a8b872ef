// A page that was opened from the disk (file:) may not start a Worker. This one runs the worker's script
// in a hidden frame instead, so that the search works there too. mkdocs.yml loads it on each page.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const scope = frame.contentWindow // of the same origin: an empty document is its parent's
      scope.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      const load = src =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script")
          Object.assign(script, { src, onload: resolve, onerror: reject })
          scope.document.body.append(script)
        })
      scope.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => load(each)), Promise.resolve())
      this.scope = scope
      this.loaded = load(url)
    }

    postMessage(data) {
      this.loaded.then(() =>
        this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })),
      )
    }
  }

// Browsers start no worker for a page that is opened from a folder (file://). The search needs one. There, this file
// replaces `Worker` by a class that runs the script of the worker in a hidden frame. Elsewhere it does nothing.
(function () {
  "use strict";
  if (location.protocol !== "file:") return;

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      // In a worker, `postMessage` reaches the page; in a frame, it would reach the frame itself.
      inner.postMessage = (data) => this.tell(new MessageEvent("message", { data }));
      inner.importScripts = (...urls) => Promise.all(urls.map((other) => this.load(other)));
      this.started = this.load(url);
      this.started.catch(() => this.tell(new ErrorEvent("error", { message: `${url} cannot be loaded` })));
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        script.onload = resolve;
        script.onerror = reject;
        script.src = new URL(url, location.href).href;
        this.frame.contentDocument.body.append(script);
      });
    }

    tell(event) {
      const handler = event.type === "message" ? this.onmessage : this.onerror;
      if (handler) handler.call(this, event);
      this.dispatchEvent(event);
    }

    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.started.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
})();

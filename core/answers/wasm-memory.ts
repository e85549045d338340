declare const WebAssembly: { Memory: { prototype: { readonly buffer: ArrayBuffer; grow(pages: number): number } } }

const PAGE_BYTES = 65_536

/**
 * Limits the memory of WebAssembly modules in this thread. It is outside the heap that `resourceLimits` limits, and grows
 * only with this function.
 * @returns whether a module needed more
 */
export function limitWasmMemory(bytes: number): { reached: boolean } {
  const limit = { reached: false }
  const { prototype } = WebAssembly.Memory
  const { grow } = prototype
  prototype.grow = function (pages) {
    limit.reached = this.buffer.byteLength + pages * PAGE_BYTES > bytes
    if (limit.reached) throw new RangeError('The module needs more memory than it may have.')
    return grow.call(this, pages)
  }
  return limit
}

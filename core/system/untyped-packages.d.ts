/** The part of the package in WebAssembly. Its own types describe the other part, which runs machine code. */
declare module '@evan/opus/wasm/index.js' {
  type Options = { channels: 1 | 2; sample_rate: number; application?: 'voip' | 'audio' }
  export class Encoder {
    constructor(options: Options)
    ctl(request: number, value?: number): number
    encode(samples: Int16Array): Uint8Array
    drop(): void
  }
  export class Decoder {
    constructor(options: Options)
    decode(packet: Uint8Array): Uint8Array
  }
}

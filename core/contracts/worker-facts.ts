import { type Static, Type } from 'typebox'

/** What `corral worker` reports about itself. Sizes are bytes. */
export const WorkerFactsSchema = Type.Object({
  corral: Type.String({ maxLength: 100 }),
  platform: Type.String({ maxLength: 40 }),
  arch: Type.String({ maxLength: 40 }),
  /** As in `BuildSchema`. */
  build: Type.Object({
    id: Type.String({ maxLength: 200 }),
    kind: Type.String({ maxLength: 40 }),
    source: Type.String({ maxLength: 40 }),
    version: Type.String({ maxLength: 200 }),
    commit: Type.Optional(Type.String({ maxLength: 40 })),
    digest: Type.String({ maxLength: 64 })
  }),
  /** Changes whenever its `ggml-rpc-server` is started. */
  instance: Type.String({ maxLength: 100 }),
  /** Whether a client is connected: `ggml-rpc-server` serves one at a time, and lets others wait forever. */
  busy: Type.Boolean(),
  /** In llama.cpp's order. */
  devices: Type.Array(
    Type.Object({
      name: Type.String({ minLength: 1, maxLength: 40 }),
      description: Type.String({ maxLength: 200 }),
      /** As llama.cpp sees it. */
      total: Type.Integer({ minimum: 0 }),
      /** Maximum that a client may use. */
      usable: Type.Integer({ minimum: 0 }),
      /** The part of `usable` that is free now. */
      free: Type.Integer({ minimum: 0 })
    }),
    { minItems: 1, maxItems: 64 }
  )
})
export type WorkerFacts = Static<typeof WorkerFactsSchema>

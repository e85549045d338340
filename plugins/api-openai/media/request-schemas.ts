import { type Static, Type } from 'typebox'
import { Given, keep_alive, loose, named } from '../../../core/http/request-fields.ts'
import { LoadOptionsSchema } from '../../../core/models/load-options.ts'
import { SamplingOptionsSchema } from '../../../core/models/options.ts'

const { temperature, max_tokens, seed } = SamplingOptionsSchema.properties

/** In a form a file, in JSON its base64. */
const File = (description: string) =>
  Type.Unsafe<string>({ type: 'string', contentMediaType: 'application/octet-stream', description })

/** Formats of transcripts that there are; the engine tells nothing of the moments that the later ones need. */
export const PLAIN_FORMATS = ['json', 'text'] as const
const TIMED_FORMATS = ['verbose_json', 'srt', 'vtt', 'diarized_json'] as const

export const TranscriptionRequest = Type.Object(
  {
    ...named,
    file: File('WAV, MP3 or FLAC'),
    language: Given(Type.String({ description: 'Of what is said; the model is told' })),
    prompt: Given(Type.String({ description: 'What the model is told to do, in the place of the usual words' })),
    response_format: Given(
      Type.Enum([...PLAIN_FORMATS, ...TIMED_FORMATS], { description: 'Only json and text can be given' })
    ),
    temperature: Given(temperature),
    max_tokens: Given(max_tokens),
    seed: Given(seed),
    num_ctx: Given(LoadOptionsSchema.properties.num_ctx),
    keep_alive,
    stream: Given(Type.Boolean()),
    include: Given(Type.Array(Type.String(), { description: '"logprobs"' })),
    timestamp_granularities: Given(Type.Array(Type.String(), { description: 'Cannot be given' }))
  },
  loose
)
export type TranscriptionRequest = Static<typeof TranscriptionRequest>

export const SpeechRequest = Type.Object(
  { ...named, input: Given(Type.String()), voice: Given(Type.Union([Type.String(), Type.Object({}, loose)])) },
  loose
)

export const ImageRequest = Type.Object({ ...named, prompt: Given(Type.String()) }, loose)
export type ModelRequest = Static<typeof ImageRequest>

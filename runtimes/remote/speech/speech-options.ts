import { type Static, Type } from 'typebox'
import { Program } from '../../../core/config/core-schema.ts'

/** An address, which decides where programs come from. */
const Address = (usual: string, description: string) =>
  Type.String({
    title: 'an address such as https://mirror.example.org',
    pattern: '^(https?://\\S+)?$',
    needsTrust: true,
    default: usual,
    description
  })

export const SpeechOptions = Type.Object(
  {
    whisper_server: Program({
      default: '',
      description: 'whisper-server of whisper.cpp; if empty, the one on PATH, of a release, or compiled from source'
    }),
    release_api: Address('https://api.github.com', "Server with GitHub's API for the releases of whisper.cpp"),
    release_mirror: Address(
      '',
      'Mirror to download releases from instead of https://github.com; empty uses github.com'
    ),
    python: Program({
      default: '',
      description: 'Python that has piper-tts and its server; if empty, that of piper on PATH, or one that corral makes'
    }),
    package_index: Address('', 'Package index to install piper from; if empty, the settings of pip and uv apply')
  },
  { restart: true, needsTrust: true }
)
export type SpeechOptions = Static<typeof SpeechOptions>

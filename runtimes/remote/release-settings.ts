import { Type } from 'typebox'

/** An address, which decides where programs come from. */
export const Address = (usual: string, description: string) =>
  Type.String({
    title: 'an address such as https://mirror.example.org',
    pattern: '^(https?://\\S+)?$',
    needsTrust: true,
    default: usual,
    description
  })

/** Settings of the section that decide where releases come from. */
export const releaseSettings = (title: string) => ({
  release_api: Address('https://api.github.com', `Server with GitHub's API for the releases of ${title}`),
  release_mirror: Address('', 'Mirror to download releases from instead of https://github.com; empty uses github.com')
})

import type { Element, Root, RootContent, Text } from 'hast'
import bash from 'highlight.js/lib/languages/bash'
import c from 'highlight.js/lib/languages/c'
import cpp from 'highlight.js/lib/languages/cpp'
import csharp from 'highlight.js/lib/languages/csharp'
import css from 'highlight.js/lib/languages/css'
import diff from 'highlight.js/lib/languages/diff'
import go from 'highlight.js/lib/languages/go'
import java from 'highlight.js/lib/languages/java'
import javascript from 'highlight.js/lib/languages/javascript'
import json from 'highlight.js/lib/languages/json'
import kotlin from 'highlight.js/lib/languages/kotlin'
import markdown from 'highlight.js/lib/languages/markdown'
import php from 'highlight.js/lib/languages/php'
import python from 'highlight.js/lib/languages/python'
import ruby from 'highlight.js/lib/languages/ruby'
import rust from 'highlight.js/lib/languages/rust'
import sql from 'highlight.js/lib/languages/sql'
import swift from 'highlight.js/lib/languages/swift'
import typescript from 'highlight.js/lib/languages/typescript'
import xml from 'highlight.js/lib/languages/xml'
import yaml from 'highlight.js/lib/languages/yaml'
import { createLowlight } from 'lowlight'
import { type ComponentChild, h } from 'preact'

const lowlight = createLowlight({
  bash,
  c,
  cpp,
  csharp,
  css,
  diff,
  go,
  java,
  javascript,
  json,
  kotlin,
  markdown,
  php,
  python,
  ruby,
  rust,
  sql,
  swift,
  typescript,
  xml,
  yaml
})

/** Longer code is shown without colours: it would take longer than a frame. */
const LONGEST = 60_000

/** Code as nodes with classes; undefined where its language is not known or it is too long. */
export function colour(text: string, language: string): ComponentChild[] | undefined {
  const name = language.toLowerCase()
  if (text.length > LONGEST || !lowlight.registered(name)) return undefined
  return nodesOf(lowlight.highlight(name, text))
}

function nodesOf({ children }: Root | Element): ComponentChild[] {
  return (children as RootContent[]).map(child => {
    if (child.type === 'text') return (child as Text).value
    if (child.type !== 'element') return null
    const names = child.properties.className
    return h('span', { class: Array.isArray(names) ? names.join(' ') : '' }, nodesOf(child))
  })
}

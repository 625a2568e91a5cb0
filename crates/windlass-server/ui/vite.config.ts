import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// All URLs are relative: the server writes a relative <base>, so one build works under any path.
export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: "dist",
    assetsInlineLimit: 0,
    // The server embeds files by name and answers with an ETag.
    chunkSizeWarningLimit: 700,
    modulePreload: { polyfill: false },
    target: "es2022",
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
  worker: { rollupOptions: { output: { entryFileNames: "assets/[name].js" } } },
  test: { include: ["src/**/*.test.ts"] },
});
